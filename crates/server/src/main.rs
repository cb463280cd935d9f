//! The binary `mafs-server`; all of it is in the library.

fn main() -> std::process::ExitCode {
    mafs_server::cli::main()
}
