//! Compiles the frames and their gRPC service with protox, so that nobody needs `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["mafs/arpc.proto"], ["proto"])?;
    let codec = "crate::carrier::CheckedCodec";
    tonic_prost_build::configure().bytes(".").codec_path(codec).compile_fds(descriptors)?;
    Ok(())
}
