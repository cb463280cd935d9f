//! The share of a reliable transport's bytes that was lost, and had to be sent again.

/// Bytes that this end's transport has sent since the connection began, without headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loss {
    /// All bytes, each time that they were sent.
    pub sent_bytes: u64,
    /// Bytes that were sent in place of lost ones.
    pub lost_bytes: u64,
}

impl Loss {
    /// Returns the lost share of the sent bytes, in parts of a million; `None` if nothing was sent.
    #[must_use]
    pub fn ppm(self) -> Option<u32> {
        let Self { sent_bytes, lost_bytes } = self;
        let ppm = (u128::from(lost_bytes.min(sent_bytes)) * 1_000_000).checked_div(u128::from(sent_bytes))?;
        u32::try_from(ppm).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_a_share_of_what_was_sent() {
        let ppm = |sent_bytes, lost_bytes| Loss { sent_bytes, lost_bytes }.ppm();
        assert_eq!(ppm(0, 0), None);
        assert_eq!(ppm(1000, 0), Some(0));
        assert_eq!(ppm(1000, 12), Some(12_000));
        assert_eq!(ppm(3, 1), Some(333_333));
        assert_eq!(ppm(u64::MAX, u64::MAX), Some(1_000_000));
        assert_eq!(ppm(1, 2), Some(1_000_000), "never more than all of it");
    }
}
