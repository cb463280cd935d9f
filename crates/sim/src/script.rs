//! The calls of programs in one list, with the answer that each must give: random, from a seed, against an exact model
//! of one directory.
//!
//! The list is made before it is run, so that it can be run over a [`Kernel`](crate::kernel::Kernel) and over a real
//! mount, and the answers compared. Calls that stand in one step are made at once by different programs; they are
//! chosen so that their order does not matter to any answer.

mod call;
mod random;
mod run;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use call::{Answer, Call};
pub use random::Mix;
pub use run::{check, run};

/// A list of calls.
#[derive(Clone, Debug)]
pub struct Script {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The files that are there in the end.
    pub left: BTreeMap<String, Vec<u8>>,
}

/// Calls that are made at once, and a pause after them.
#[derive(Clone, Debug)]
pub struct Step {
    /// The calls, with their required answers.
    pub calls: Vec<(Call, Answer)>,
    /// The time without calls that follows.
    pub pause: Duration,
    /// A file that is as it was closed: another client must be shown it so from now on.
    pub closed: Option<(String, Vec<u8>)>,
}

impl Script {
    /// Makes a random script of so many steps.
    #[must_use]
    pub fn random(seed: u64, steps: usize, mix: Mix) -> Self {
        random::script(seed, steps, mix)
    }
}

/// Writes a step as a program in another language reads it: a line for each.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pause.as_micros())?;
        self.calls.iter().try_for_each(|(call, _)| write!(f, "; {call}"))
    }
}
