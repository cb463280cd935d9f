//! Hoard specifications such as `500:d+`: the files that a user hoards, and their rank against other files in the
//! cache.
//!
//! Modelled on Coda's hoard files: a path, its priority, and how much below the path is meant. A pin is such an entry
//! too: it means everything below the path, and ranks above every priority.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The environment variable by which a program belongs to a recording: holds the recording's number.
pub const RECORDING_VARIABLE: &str = "MAFS_RECORDING";

/// The worth of a file in the cache to the user, besides having been used lately. Ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "u16")]
pub struct Rank(u16);

impl Rank {
    /// The rank of a file that the user has not asked to keep.
    pub const NONE: Self = Self(0);
    /// The worth of a file that has just been used.
    pub(crate) const USED: Self = Self(333);
    /// The highest priority.
    pub const MAX: Self = Self(1000);
    /// The rank of a pinned file, which never goes.
    pub const PINNED: Self = Self(1001);

    /// Returns the rank of a priority; there are priorities from 1 to 1,000.
    #[must_use]
    pub fn hoarded(priority: u16) -> Option<Self> {
        (1..=Self::MAX.0).contains(&priority).then_some(Self(priority))
    }

    /// Returns the priority of a hoarded file. `None`: the file is pinned, or neither.
    #[must_use]
    pub fn priority(self) -> Option<u16> {
        Self::hoarded(self.0).map(|rank| rank.0)
    }

    /// Whether this is the rank of a pinned file.
    #[must_use]
    pub fn is_pinned(self) -> bool {
        self == Self::PINNED
    }

    /// Whether a file of this rank is to be in the cache.
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

/// The part of a path's object and its descendants that is meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Scope {
    /// The object alone.
    #[default]
    Object,
    /// The object, and the entries of the directory; `later`: also those to come.
    Children {
        /// `c+`.
        later: bool,
    },
    /// The object, and everything below it.
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

    /// Returns the scope of each entry in a directory; `None`: the entries are not meant.
    #[must_use]
    pub fn below(self) -> Option<Self> {
        match self {
            Self::Object => None,
            Self::Children { .. } => Some(Self::Object),
            Self::Descendants { .. } => Some(self),
        }
    }

    /// Whether the scope means only the objects that are there now.
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

/// The rank and scope with which a path is hoarded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct HoardSpec {
    /// The worth of the hoarded objects.
    pub rank: Rank,
    /// The part that is meant.
    pub scope: Scope,
}

/// The priority of `hoard add` without one: a file hoarded with it outlives any that was only used.
const DEFAULT_PRIORITY: u16 = 500;

/// The reason why a text is no hoard specification.
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
