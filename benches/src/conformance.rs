//! Conformance: a suite's results on the mount, compared with its results on ext4. Owns the rule of the comparison;
//! knows nothing of any suite.
//!
//! The yardstick is measured each time, so that it is this machine's kernel and not a list that grows old. A check
//! that cannot pass as on ext4 is listed with its reason, and a list that is longer than it has to be is a failure as
//! well.

use std::collections::BTreeMap;

/// Outcome of one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The check was carried out, and all was as it should be.
    Passed,
    /// The check was not carried out, for instance because the file system lacks something.
    Skipped,
    /// The check was carried out, and something was wrong.
    Failed,
}

/// The outcome of every check of a suite, by name.
pub type Outcomes = BTreeMap<String, Outcome>;

/// A check that passes on ext4 and cannot pass here.
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    /// The name that the suite gives the check.
    pub check: &'static str,
    /// The reason why the check cannot pass.
    pub why: &'static str,
}

/// Lists what is wrong with `measured`: every check that passes by the `yardstick` alone and is no exception, and
/// every exception that is none (any more). Empty if all is well.
#[must_use]
pub fn complaints(yardstick: &Outcomes, measured: &Outcomes, exceptions: &[Exception]) -> Vec<String> {
    let passes = |outcomes: &Outcomes, check: &str| outcomes.get(check) == Some(&Outcome::Passed);
    let listed = |check: &str| exceptions.iter().any(|exception| exception.check == check);
    let worse = yardstick.keys().filter(|check| passes(yardstick, check) && !passes(measured, check));
    let unexpected = worse.filter(|check| !listed(check)).map(|check| match measured.get(check) {
        Some(outcome) => format!("{check} passes on ext4 and here not: {outcome:?}"),
        None => format!("{check} passes on ext4 and did not run here"),
    });
    let needless = exceptions.iter().filter_map(|Exception { check, why }| {
        if !passes(yardstick, check) {
            Some(format!("{check} is an exception ({why}), but does not pass on ext4 either"))
        } else if passes(measured, check) {
            Some(format!("{check} passes here: it is no exception ({why}) any more"))
        } else {
            None
        }
    });
    unexpected.chain(needless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Failed, Passed, Skipped};

    const EXCEPTION: Exception = Exception { check: "b", why: "because" };

    fn outcomes(of: &[(&str, Outcome)]) -> Outcomes {
        of.iter().map(|(check, outcome)| ((*check).to_owned(), *outcome)).collect()
    }

    #[test]
    fn what_passes_only_on_ext4_is_a_complaint() {
        let ext4 = outcomes(&[("a", Passed), ("b", Passed), ("c", Passed), ("d", Passed), ("e", Skipped)]);
        let here = outcomes(&[("a", Passed), ("b", Failed), ("c", Skipped), ("e", Failed)]);
        let found = complaints(&ext4, &here, &[]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("b ") && found[0].contains("Failed"), "{found:?}");
        assert!(found[1].starts_with("c ") && found[1].contains("Skipped"), "{found:?}");
        assert!(found[2].starts_with("d ") && found[2].contains("did not run"), "{found:?}");
    }

    #[test]
    fn an_exception_excuses_its_own_check_alone() {
        let ext4 = outcomes(&[("a", Passed), ("b", Passed)]);
        assert!(complaints(&ext4, &outcomes(&[("a", Passed), ("b", Skipped)]), &[EXCEPTION]).is_empty());
        assert_eq!(complaints(&ext4, &outcomes(&[("a", Failed), ("b", Skipped)]), &[EXCEPTION]).len(), 1);
    }

    #[test]
    fn an_exception_that_is_none_any_more_is_a_complaint() {
        let passes_everywhere = outcomes(&[("b", Passed)]);
        assert_eq!(complaints(&passes_everywhere, &passes_everywhere, &[EXCEPTION]).len(), 1);
        let passes_nowhere = outcomes(&[("b", Failed)]);
        assert_eq!(complaints(&passes_nowhere, &passes_nowhere, &[EXCEPTION]).len(), 1);
    }
}
