//! Limits of a class, set by the user: `store=64k`, `prefetch=off`.

use std::fmt;
use std::str::FromStr;

use mafs_arpc::{InvalidRate, Rate};
use mafs_proto::Class;
use serde::{Deserialize, Serialize};

/// A limit for one class: the most bytes that a mount sends of it in a second, and the most that it gets; or no limit.
/// Never for Control, which keeps the session and the cache valid; where classes do not count everything is Store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ClassLimit {
    class: Class,
    rate: Option<Rate>,
}

/// The reason why a text is no limit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidLimit {
    /// The text has no `=`.
    #[error("a limit is CLASS=RATE, or CLASS=off")]
    Form,
    /// No class of that name can be limited.
    #[error("`{0}` cannot be limited: fetch, prefetch, metadata and store can")]
    Class(String),
    /// The rate makes no sense.
    #[error("{0}, or `off`")]
    Rate(#[from] InvalidRate),
}

impl ClassLimit {
    /// Returns the limited class.
    #[must_use]
    pub fn class(self) -> Class {
        self.class
    }

    /// Returns the most bytes per second; `None`: all that the link carries.
    #[must_use]
    pub fn rate(self) -> Option<Rate> {
        self.rate
    }
}

impl FromStr for ClassLimit {
    type Err = InvalidLimit;

    fn from_str(text: &str) -> Result<Self, InvalidLimit> {
        let (name, rate) = text.split_once('=').ok_or(InvalidLimit::Form)?;
        let limited = Class::ALL.into_iter().filter(|class| *class != Class::Control);
        let class = limited.into_iter().find(|class| class.to_string() == name);
        let class = class.ok_or_else(|| InvalidLimit::Class(name.to_owned()))?;
        let rate = match rate {
            "off" => None,
            rate => Some(rate.parse()?),
        };
        Ok(Self { class, rate })
    }
}

impl fmt::Display for ClassLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "{}={}", self.class, rate.get()),
            None => write!(f, "{}=off", self.class),
        }
    }
}

impl From<ClassLimit> for String {
    fn from(limit: ClassLimit) -> Self {
        limit.to_string()
    }
}

impl TryFrom<String> for ClassLimit {
    type Error = InvalidLimit;

    fn try_from(text: String) -> Result<Self, InvalidLimit> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_class_and_a_rate() {
        for (text, class, bytes) in [
            ("store=64k", Class::Store, Some(64 << 10)),
            ("metadata=1024", Class::Metadata, Some(1024)),
            ("prefetch=2M", Class::Prefetch, Some(2 << 20)),
            ("fetch=off", Class::Fetch, None),
        ] {
            let limit: ClassLimit = text.parse().unwrap();
            assert_eq!((limit.class(), limit.rate()), (class, bytes.and_then(Rate::bytes_per_s)), "{text}");
            assert_eq!(limit.to_string().parse(), Ok(limit));
            let json = serde_json::to_string(&limit).unwrap();
            assert_eq!(serde_json::from_str::<ClassLimit>(&json).unwrap(), limit);
        }
    }

    #[test]
    fn other_texts_are_errors_that_say_what_would_do() {
        for (text, expected) in [
            ("store", "CLASS=RATE"),
            ("", "CLASS=RATE"),
            ("control=64k", "`control` cannot be limited"),
            ("stores=64k", "fetch, prefetch, metadata and store"),
            ("Store=64k", "`Store` cannot"),
            ("store=", "`` is no rate"),
            ("store=0", "from 1k on"),
            ("store=1023", "`1023` is no rate"),
            ("store=-1", "is no rate"),
            ("store=64k/s", "is no rate"),
            ("store=none", "`off`"),
        ] {
            let error = text.parse::<ClassLimit>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(serde_json::from_str::<ClassLimit>("\"control=off\"").is_err());
    }
}
