//! Sizes as people write them.

/// The error of a text that is not a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a size is a number of bytes, or a number with K, M, G or T (powers of 1,024)")]
pub struct InvalidSize;

/// Parses `10G`, `512M`, `4096`: bytes. `GiB` and `GB` mean the same as `G`.
///
/// # Errors
/// [`InvalidSize`], also for sizes beyond 64 bits.
pub fn parse_size(text: &str) -> Result<u64, InvalidSize> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| InvalidSize)?;
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" if unit.len() <= 1 => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(InvalidSize),
    };
    number.checked_mul(1 << shift).ok_or(InvalidSize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("1k", 1 << 10),
            ("3MiB", 3 << 20),
            ("10GB", 10 << 30),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "1 G", "1Q", "1GG", "99999999999T", "18446744073709551616", "1iB"] {
            assert_eq!(parse_size(text), Err(InvalidSize), "{text}");
        }
    }
}
