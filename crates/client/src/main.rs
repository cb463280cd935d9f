//! `mafs-client`: the command line in front of the library.

mod cli;
#[cfg(feature = "quickstart")]
mod quickstart;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
