//! Batches as bytes, in journal and checkpoints. docs/formats.md describes them.
//!
//! Decoding takes hostile bytes: it never panics and allocates no more than a small multiple of what it is given.

use crate::Batch;

/// The first byte of every encoded batch.
const BATCH_VERSION: u8 = 1;

/// The fewest bytes of a change: an empty key's length and the mark of a removal.
const CHANGE_BYTES_MIN: usize = 2;

/// Appends a batch to `out`.
pub(super) fn encode(batch: &Batch, out: &mut Vec<u8>) {
    out.push(BATCH_VERSION);
    put_number(batch.changes.len(), out);
    for (key, value) in &batch.changes {
        put_number(key.len(), out);
        out.extend_from_slice(key);
        match value {
            None => put_number(0, out),
            Some(value) => {
                put_number(value.len() + 1, out);
                out.extend_from_slice(value);
            }
        }
    }
}

/// Parses a batch; says what is wrong with other bytes.
pub(super) fn decode(bytes: &[u8]) -> Result<Batch, &'static str> {
    let mut rest = match bytes.split_first() {
        Some((&BATCH_VERSION, rest)) => rest,
        Some(_) => return Err("a batch of an unknown version"),
        None => return Err("an empty batch"),
    };
    let count = take_number(&mut rest)?;
    if count > rest.len() / CHANGE_BYTES_MIN {
        return Err("a batch holds fewer changes than it says");
    }
    let mut changes = Vec::with_capacity(count);
    for _ in 0..count {
        let key_bytes = take_number(&mut rest)?;
        let key = take(&mut rest, key_bytes)?.to_vec();
        let value = match take_number(&mut rest)?.checked_sub(1) {
            None => None,
            Some(value_bytes) => Some(take(&mut rest, value_bytes)?.to_vec()),
        };
        changes.push((key, value));
    }
    if rest.is_empty() { Ok(Batch { changes }) } else { Err("bytes follow a batch") }
}

/// Appends a number in base 128, lowest digit first, the high bit set in all bytes but the last.
fn put_number(mut number: usize, out: &mut Vec<u8>) {
    loop {
        let digit = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            out.push(digit);
            return;
        }
        out.push(digit | 0x80);
    }
}

fn take_number(rest: &mut &[u8]) -> Result<usize, &'static str> {
    let mut number = 0;
    // Four digits are enough: nothing in a record of 1 MB needs more.
    for shift in [0, 7, 14, 21] {
        let digit = usize::from(take(rest, 1)?[0]);
        number |= (digit & 0x7f) << shift;
        if digit & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err("a number is too large")
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], &'static str> {
    let (taken, left) = rest.split_at_checked(count).ok_or("a batch is cut short")?;
    *rest = left;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..max)
    }

    proptest! {
        #[test]
        fn proptest_batches_come_back(
            changes in proptest::collection::vec((bytes(300), proptest::option::of(bytes(20_000))), 0..20),
        ) {
            let batch = Batch { changes };
            let mut encoded = Vec::new();
            encode(&batch, &mut encoded);
            prop_assert_eq!(decode(&encoded), Ok(batch));
            prop_assert!(decode(&encoded[..encoded.len() - 1]).is_err());
            encoded.push(0);
            prop_assert!(decode(&encoded).is_err());
        }

        #[test]
        fn proptest_other_bytes_are_refused_or_are_a_batch(mut hostile in bytes(64)) {
            if let Some(first) = hostile.first_mut() {
                *first = BATCH_VERSION;
            }
            if let Ok(batch) = decode(&hostile) {
                prop_assert!(batch.changes.len() <= hostile.len() / CHANGE_BYTES_MIN);
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let mut batch = Batch::default();
        batch.put("a", "xyz");
        batch.remove("b");
        let mut encoded = Vec::new();
        encode(&batch, &mut encoded);
        assert_eq!(crate::formats::example("batch"), encoded);
    }

    #[test]
    fn a_count_that_lies_allocates_nothing() {
        assert!(decode(&[BATCH_VERSION, 0xff, 0xff, 0xff, 0x7f]).is_err());
    }
}
