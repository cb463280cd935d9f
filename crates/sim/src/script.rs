//! What programs do, as one list of system calls with the answer that each must give: random, from a seed, against an
//! exact model of one directory.
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
    /// In order.
    pub steps: Vec<Step>,
    /// What is there in the end.
    pub left: BTreeMap<String, Vec<u8>>,
}

/// Calls that are made at once, and a pause after them.
#[derive(Clone, Debug)]
pub struct Step {
    /// With what they must answer.
    pub calls: Vec<(Call, Answer)>,
    /// How long nothing is called then.
    pub pause: Duration,
    /// Files that are as they were closed: what another client must be shown from now on.
    pub closed: Option<(String, Vec<u8>)>,
}

impl Script {
    /// A random one of so many steps.
    #[must_use]
    pub fn random(seed: u64, steps: usize, mix: Mix) -> Self {
        random::script(seed, steps, mix)
    }
}

/// As a program in another language reads it: a line for each step.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pause.as_micros())?;
        self.calls.iter().try_for_each(|(call, _)| write!(f, "; {call}"))
    }
}
