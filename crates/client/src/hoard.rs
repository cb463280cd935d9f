//! What a user hoards: `500:d+`, and how that ranks against other files in the cache.
//!
//! After Coda's hoard files: a path with a priority, and how much of what is below it is meant. A pin is such an entry
//! too, with all that is below and a rank above every priority.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The environment variable by which a program belongs to a recording: it has its number.
pub const RECORDING_VARIABLE: &str = "MAFS_RECORDING";

/// How much a file in the cache is worth to the user, besides having been used lately. Ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "u16")]
pub struct Rank(u16);

impl Rank {
    /// Nobody has asked for it to be kept.
    pub const NONE: Self = Self(0);
    /// As much as what has just been used is worth.
    pub(crate) const USED: Self = Self(333);
    /// The highest priority.
    pub const MAX: Self = Self(1000);
    /// It never goes.
    pub const PINNED: Self = Self(1001);

    /// The rank of this priority; from 1 to 1,000 there are.
    #[must_use]
    pub fn hoarded(priority: u16) -> Option<Self> {
        (1..=Self::MAX.0).contains(&priority).then_some(Self(priority))
    }

    /// The priority that it was hoarded with. `None`: it is pinned, or neither.
    #[must_use]
    pub fn priority(self) -> Option<u16> {
        Self::hoarded(self.0).map(|rank| rank.0)
    }

    /// Whether it is pinned.
    #[must_use]
    pub fn is_pinned(self) -> bool {
        self == Self::PINNED
    }

    /// Whether it is to be in the cache.
    #[must_use]
    pub fn is_wanted(self) -> bool {
        self != Self::NONE
    }
}

impl From<Rank> for u16 {
    fn from(rank: Rank) -> Self {
        rank.0
    }
}

impl TryFrom<u16> for Rank {
    type Error = String;

    fn try_from(number: u16) -> Result<Self, String> {
        let rank = Self(number);
        if rank <= Self::PINNED { Ok(rank) } else { Err(format!("{number} is no rank")) }
    }
}

/// How much of what is below a path is meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Scope {
    /// The object alone.
    #[default]
    Object,
    /// And what is in the directory; `later`: also what comes.
    Children {
        /// `c+`.
        later: bool,
    },
    /// And everything below it.
    Descendants {
        /// `d+`.
        later: bool,
    },
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 5] = [
        Self::Object,
        Self::Children { later: false },
        Self::Children { later: true },
        Self::Descendants { later: false },
        Self::Descendants { later: true },
    ];

    /// What of the things in a directory is meant; `None`: they are not.
    #[must_use]
    pub fn below(self) -> Option<Self> {
        match self {
            Self::Object => None,
            Self::Children { .. } => Some(Self::Object),
            Self::Descendants { .. } => Some(self),
        }
    }

    /// Whether it names what is there now, whatever comes.
    #[must_use]
    pub fn is_of_now(self) -> bool {
        matches!(self, Self::Children { later: false } | Self::Descendants { later: false })
    }

    const fn letters(self) -> &'static str {
        match self {
            Self::Object => "",
            Self::Children { later: false } => "c",
            Self::Children { later: true } => "c+",
            Self::Descendants { later: false } => "d",
            Self::Descendants { later: true } => "d+",
        }
    }
}

/// With what a path is hoarded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct HoardSpec {
    /// How much it is worth.
    pub rank: Rank,
    /// What of it.
    pub scope: Scope,
}

/// What `hoard add` takes if no priority is given: a file hoarded so outlives any that was only used.
const DEFAULT_PRIORITY: u16 = 500;

/// Why a text is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidHoardSpec {
    /// The part before the colon.
    #[error("`{0}` is no priority: they go from 1 to 1000")]
    Priority(String),
    /// The part behind it.
    #[error("`{0}` is none of c, c+, d and d+: children or descendants of a directory, and with + those to come")]
    Scope(String),
}

impl HoardSpec {
    /// A pin.
    pub const PIN: Self = Self { rank: Rank::PINNED, scope: Scope::Descendants { later: true } };
}

impl Default for HoardSpec {
    fn default() -> Self {
        Self { rank: Rank(DEFAULT_PRIORITY), scope: Scope::Object }
    }
}

impl FromStr for HoardSpec {
    type Err = InvalidHoardSpec;

    fn from_str(text: &str) -> Result<Self, InvalidHoardSpec> {
        let (priority, letters) = text.split_once(':').map_or((text, None), |(before, behind)| (before, Some(behind)));
        let rank = match (priority, letters) {
            ("", Some(_)) => Self::default().rank,
            (digits, _) => {
                let rank = digits.parse().ok().and_then(Rank::hoarded);
                rank.ok_or_else(|| InvalidHoardSpec::Priority(digits.to_owned()))?
            }
        };
        let scope = match letters {
            None => Scope::Object,
            Some(letters) => {
                let scope = Scope::ALL.into_iter().skip(1).find(|scope| scope.letters() == letters);
                scope.ok_or_else(|| InvalidHoardSpec::Scope(letters.to_owned()))?
            }
        };
        Ok(Self { rank, scope })
    }
}

impl fmt::Display for HoardSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank.priority() {
            None if *self == Self::PIN => return f.write_str("pinned"),
            None => f.write_str("pinned")?,
            Some(priority) => write!(f, "{priority}")?,
        }
        match self.scope.letters() {
            "" => Ok(()),
            letters => write!(f, ":{letters}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_and_a_scope_may_each_be_left_out() {
        let (children, descendants) = (Scope::Children { later: false }, Scope::Descendants { later: true });
        for (text, priority, scope) in [
            ("1", 1, Scope::Object),
            ("1000", 1000, Scope::Object),
            ("7:c", 7, children),
            (":c+", 500, Scope::Children { later: true }),
            ("500:d", 500, Scope::Descendants { later: false }),
            (":d+", 500, descendants),
        ] {
            let spec: HoardSpec = text.parse().unwrap();
            assert_eq!((spec.rank.priority(), spec.scope), (Some(priority), scope), "{text}");
            assert_eq!(spec.to_string().parse(), Ok(spec));
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<HoardSpec>(&json).unwrap(), spec);
        }
        assert_eq!((HoardSpec::default().to_string(), HoardSpec::PIN.to_string()), ("500".into(), "pinned".into()));
    }

    #[test]
    fn other_texts_are_errors_that_say_what_would_do() {
        for (text, expected) in [
            ("", "`` is no priority"),
            ("0", "from 1 to 1000"),
            ("1001", "from 1 to 1000"),
            ("-1:d", "`-1` is no priority"),
            ("d+", "`d+` is no priority"),
            ("5:", "`` is none of"),
            ("5:e", "c, c+, d and d+"),
            ("5:d++", "`d++`"),
        ] {
            let error = text.parse::<HoardSpec>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Rank>("1002").is_err());
    }

    #[test]
    fn ranks_are_ordered_and_a_pin_is_above_all() {
        assert!(Rank::NONE < Rank(1) && Rank(1) < Rank::MAX && Rank::MAX < Rank::PINNED);
        assert!(Rank::PINNED.is_pinned() && Rank::PINNED.is_wanted() && !Rank::NONE.is_wanted());
        assert_eq!((Rank::PINNED.priority(), Rank::NONE.priority()), (None, None));
    }
}
