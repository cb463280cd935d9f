//! Conversion between domain types and prost messages, both ways. Parsing refuses all values that the domain types
//! cannot hold.

mod asks;
mod calls;
mod conflicts;
mod locks;
mod nouns;
mod records;
#[cfg(test)]
mod tests;
mod validation;
mod xattrs;

use bytes::Bytes;
use prost::Message;

/// The generated messages: an unparsed one never leaves `convert`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::use_self)]
mod wire {
    include!(concat!(env!("OUT_DIR"), "/mafs.v1.rs"));
}

/// The reason why bytes are not the message they should be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The bytes are not protobuf, or not of this shape.
    #[error("not a {message}: {source}")]
    Undecodable {
        /// The message that was expected.
        message: &'static str,
        /// The error of protobuf.
        source: prost::DecodeError,
    },
    /// A field that must be there is not.
    #[error("the field `{0}` is missing")]
    Missing(&'static str),
    /// A field holds a value that it must not.
    #[error("the field `{field}` is invalid: {why}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The rule it breaks.
        why: String,
    },
}

impl Malformed {
    fn invalid(field: &'static str, why: impl std::fmt::Display) -> Self {
        Self::Invalid { field, why: why.to_string() }
    }
}

/// A domain type with a wire form. Calls, the client's log and the server's journal use the same bytes.
pub trait Wire: Sized {
    /// Encodes as protobuf.
    fn encode(&self) -> Bytes;

    /// Parses; takes hostile bytes.
    ///
    /// # Errors
    /// [`Malformed`] says what is wrong. Never panics, and allocates no more than a small multiple of `bytes.len()`.
    fn decode(bytes: Bytes) -> Result<Self, Malformed>;
}

/// Conversion between a domain type and its prost message.
trait Convert: Sized {
    type Message: Message + Default;
    const NAME: &'static str;

    fn to_message(&self) -> Self::Message;
    fn from_message(message: Self::Message) -> Result<Self, Malformed>;
}

impl<T: Convert> Wire for T {
    fn encode(&self) -> Bytes {
        self.to_message().encode_to_vec().into()
    }

    fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let message =
            T::Message::decode(bytes).map_err(|source| Malformed::Undecodable { message: T::NAME, source })?;
        T::from_message(message)
    }
}

/// Parses a field that must be present.
fn required<T: Convert>(message: Option<T::Message>, field: &'static str) -> Result<T, Malformed> {
    T::from_message(message.ok_or(Malformed::Missing(field))?)
}

/// Parses a field that may be absent.
fn optional<T: Convert>(message: Option<T::Message>) -> Result<Option<T>, Malformed> {
    message.map(T::from_message).transpose()
}

/// Parses a list of at most `count_max`.
fn list<T: Convert>(messages: Vec<T::Message>, count_max: usize, field: &'static str) -> Result<Vec<T>, Malformed> {
    at_most(messages, count_max, field)?.into_iter().map(T::from_message).collect()
}

/// Refuses a list of more than `count_max`.
fn at_most<T>(items: Vec<T>, count_max: usize, field: &'static str) -> Result<Vec<T>, Malformed> {
    if items.len() > count_max {
        return Err(Malformed::invalid(field, format_args!("{} entries, at most {count_max}", items.len())));
    }
    Ok(items)
}

fn to_messages<T: Convert>(items: &[T]) -> Vec<T::Message> {
    items.iter().map(Convert::to_message).collect()
}
