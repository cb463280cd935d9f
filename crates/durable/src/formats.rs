//! The examples in docs/formats.md, for the tests that keep it true.

/// Returns the bytes of the block marked `hex NAME`.
pub(crate) fn example(name: &str) -> Vec<u8> {
    let document = include_str!("../../../docs/formats.md");
    let block = document.split(&format!("```hex {name}\n")).nth(1).unwrap().split("```").next().unwrap();
    let digits: Vec<u8> = block.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}
