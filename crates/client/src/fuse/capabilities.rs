//! Capabilities and limits that the kernel is asked for at the start.

use fuser::{InitFlags, KernelConfig};

use crate::vfs::{Locking, Vfs};

/// The largest write the kernel sends: its own limit of 256 pages.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// The most background requests (read-ahead above all) that the kernel has under way. Far above its default of 16, so
/// that files which arrive slowly do not hold up those that are here; below `WAITING_MAX`, so that callers find a
/// place.
const BACKGROUND_MAX: u16 = 2048;

/// Sets how much the kernel may send at once.
pub(super) fn set_limits(config: &mut KernelConfig) -> std::io::Result<()> {
    config.set_max_write(WRITE_BYTES_MAX).map_err(out_of_range)?;
    config.set_max_background(BACKGROUND_MAX).map_err(|nearest| out_of_range(u32::from(nearest)))?;
    Ok(())
}

/// Asks for the capabilities that this file system can use. Returns those of the kernel.
pub(super) fn ask_for_capabilities(vfs: &Vfs, config: &mut KernelConfig) -> InitFlags {
    let wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
        // Set-id bits are ours to drop: otherwise the kernel asks for `security.capability` before every write.
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
    // AUTO_INVAL_DATA is not wanted: it would drop all pages of a file whenever its mtime moves, as it does at every
    // write. `keep_cache` at open and invalidations say when pages are out of date.
    let wanted = match vfs.locking() {
        Locking::Kernel => wanted,
        Locking::Local | Locking::Fail | Locking::Strict => {
            wanted | InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS
        }
    };
    let missing = config.add_capabilities(wanted).err();
    if let Some(missing) = missing {
        config.add_capabilities(wanted & !missing).ok();
        tracing::warn!(?missing, "this kernel lacks FUSE features: it will be slower");
    }
    offer_containers(vfs, config);
    config.capabilities()
}

/// Offers containers to the kernel. They may lie on a file system of their own, but not on one that lies on another.
fn offer_containers(vfs: &Vfs, config: &mut KernelConfig) {
    if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err() {
        vfs.end_passthrough("the kernel has none (Linux 6.9 and later have)");
    } else if config.set_max_stack_depth(1).is_err() {
        vfs.end_passthrough("the kernel stacks no file systems");
    }
}

fn out_of_range(nearest: u32) -> std::io::Error {
    std::io::Error::other(format!("the kernel takes at most {nearest} of a FUSE limit"))
}
