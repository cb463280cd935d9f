//! The mount table of the kernel, as far as mafs is in it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::FS_TYPE;

/// A mounted volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// `major:minor` of the device that the mount is to the kernel.
    pub device: String,
    /// The mount point.
    pub mount_point: PathBuf,
    /// The target as it was given to `mount`.
    pub source: String,
}

/// Finds the mafs mount that is seen at `mount_point`, an absolute path.
///
/// # Errors
/// If the mount table cannot be read.
pub fn mafs_mount_at(mount_point: &Path) -> std::io::Result<Option<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(topmost(&table, mount_point))
}

/// Lists all mafs mounts that this process can see.
///
/// # Errors
/// If the mount table cannot be read.
pub fn mafs_mounts() -> std::io::Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let lines = table.split(|byte| *byte == b'\n').filter_map(parse_line);
    Ok(lines.filter(|(fs_type, _)| fs_type == FS_TYPE).map(|(_, entry)| entry).collect())
}

/// Finds the last mount at a path, which hides the ones before it.
fn topmost(table: &[u8], mount_point: &Path) -> Option<MountEntry> {
    let lines = table.split(|byte| *byte == b'\n').filter_map(parse_line);
    let (fs_type, entry) = lines.rev().find(|(_, entry)| entry.mount_point == mount_point)?;
    (fs_type == FS_TYPE).then_some(entry)
}

/// Parses `36 35 98:0 /root /mount/point rw,noatime master:1 - type source options`, with octal escapes. See
/// proc_pid_mountinfo(5).
fn parse_line(line: &[u8]) -> Option<(String, MountEntry)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let mount_point = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let mut behind_dash = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = String::from_utf8(unescape(behind_dash.next()?)).ok()?;
    let source = String::from_utf8_lossy(&unescape(behind_dash.next()?)).into_owned();
    Some((fs_type, MountEntry { device, mount_point, source }))
}

/// Replaces octal escapes such as `\040` by their bytes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'))
            }
            _ => None,
        };
        plain.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"24 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        90 24 0:53 / /mnt/my\\040files rw,nosuid master:3 shared:1 - fuse.mafs host:/home rw,user_id=0\n\
        91 24 0:54 / /mnt/over rw - fuse.mafs host:/old rw\n\
        92 24 0:55 / /mnt/over rw - tmpfs tmpfs rw\n\
        broken line\n";

    #[test]
    fn a_mount_is_found_by_its_path_with_its_device_and_source() {
        let entry = topmost(TABLE, Path::new("/mnt/my files")).unwrap();
        assert_eq!((entry.device.as_str(), entry.source.as_str()), ("0:53", "host:/home"));
    }

    #[test]
    fn other_file_systems_and_hidden_mounts_are_not_ours() {
        assert_eq!(topmost(TABLE, Path::new("/")), None);
        assert_eq!(topmost(TABLE, Path::new("/mnt/over")), None);
        assert_eq!(topmost(TABLE, Path::new("/mnt/none")), None);
    }

    #[test]
    fn escapes_are_undone_and_other_backslashes_stay() {
        assert_eq!(unescape(b"a\\134b\\011c"), b"a\\b\tc");
        assert_eq!(unescape(b"\\04"), b"\\04");
        assert_eq!(unescape(b"\\999\\"), b"\\999\\");
    }

    #[test]
    fn the_table_of_this_machine_can_be_read() {
        assert_eq!(mafs_mount_at(Path::new("/proc")).unwrap(), None);
    }
}
