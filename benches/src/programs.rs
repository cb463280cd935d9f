//! The programs of mafs: beside the running test, built now if they are not up to date.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::process;

/// Limit of the build: a cold build with optimisation takes minutes on two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The programs of one build.
#[derive(Clone, Debug)]
pub struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// Builds the programs in the profile of the running executable, once per process, and returns where they are.
    ///
    /// # Errors
    /// If the build fails.
    pub fn build() -> io::Result<Self> {
        static DONE: OnceLock<Result<Programs, String>> = OnceLock::new();
        DONE.get_or_init(|| build().map_err(|error| error.to_string())).clone().map_err(io::Error::other)
    }

    /// Returns the path of `mafs-server`.
    #[must_use]
    pub fn server(&self) -> PathBuf {
        self.directory.join("mafs-server")
    }

    /// Returns the path of `mafs-client`.
    #[must_use]
    pub fn client(&self) -> PathBuf {
        self.directory.join("mafs-client")
    }

    /// Returns the path of `mafs-link`.
    #[must_use]
    pub fn link(&self) -> PathBuf {
        self.directory.join("mafs-link")
    }

    /// Returns the directory of everything that is built.
    #[must_use]
    pub fn target_directory(&self) -> &Path {
        self.directory.parent().unwrap_or(&self.directory)
    }
}

fn build() -> io::Result<Programs> {
    // target/PROFILE/deps/THIS
    let this = env::current_exe()?;
    let directory = this.ancestors().nth(2).ok_or_else(|| io::Error::other("not run by cargo"))?.to_path_buf();
    let target = directory.parent().ok_or_else(|| io::Error::other("not run by cargo"))?;
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--offline", "--workspace", "--bins", "--manifest-path"]);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).env("CARGO_TARGET_DIR", target);
    if directory.ends_with("release") {
        command.arg("--release");
    }
    forget_package(&mut command);
    process::run(&mut command, BUILD_LIMIT)?;
    Ok(Programs { directory })
}

/// Removes the variables by which cargo tells a running test about its package. Build scripts that look at them, such
/// as ring's, would run anew, and the next build would build everything above them again.
fn forget_package(command: &mut Command) {
    let is_of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_package) {
            command.env_remove(name);
        }
    }
}
