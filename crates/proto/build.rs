//! Compiles the protobuf messages with protox, so that nobody needs `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["mafs/mafs.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).enable_type_names().compile_fds(descriptors)?;
    Ok(())
}
