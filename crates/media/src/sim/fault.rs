//! The plan of errors: which request fails, how, and for how long.

use std::ops::Range;

use rustix::io::Errno;

use crate::error::{MediaError, Op};

/// A planned error. `Fault::nth(Op::Write, 3)` makes the fourth write from now fail, once, with
/// EIO.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Fault {
    op: Option<Op>,
    range: Range<u64>,
    skip: u64,
    times: Option<u64>,
    failure: Failure,
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing happens on the medium.
    Error(Errno),
    /// A write stores its first sectors and not the rest, and fails with EIO. Other requests do
    /// nothing.
    Torn {
        /// How many sectors of the write are stored.
        sectors: u32,
    },
}

impl Failure {
    /// Returns the error of the request.
    pub(crate) fn of(self, op: Op, offset: u64, len: u64) -> MediaError {
        let source = match self {
            Self::Error(errno) => errno,
            Self::Torn { .. } => Errno::IO,
        };
        MediaError::Io {
            op,
            offset,
            len,
            source,
        }
    }
}

impl Fault {
    /// Fails the request of this kind that comes after `skip` others of the kind.
    pub fn nth(op: Op, skip: u64) -> Self {
        Self {
            op: Some(op),
            range: 0..u64::MAX,
            skip,
            times: Some(1),
            failure: Failure::Error(Errno::IO),
        }
    }

    /// Fails the request of any kind that comes after `skip` others.
    pub fn nth_of_any(skip: u64) -> Self {
        Self {
            op: None,
            ..Self::nth(Op::Read, skip)
        }
    }

    /// Restricts the fault to requests that touch these bytes: only they count and fail. Flushes
    /// touch none.
    pub fn within(mut self, bytes: Range<u64>) -> Self {
        self.range = bytes;
        self
    }

    /// Makes `times` such requests in a row fail.
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Makes every such request from the first on fail.
    pub fn for_good(mut self) -> Self {
        self.times = None;
        self
    }

    /// Sets how they fail.
    pub fn failing(mut self, failure: Failure) -> Self {
        self.failure = failure;
        self
    }

    fn concerns(&self, op: Op, offset: u64, len: u64) -> bool {
        let everywhere = self.range == (0..u64::MAX);
        let touches = offset < self.range.end && self.range.start < offset.saturating_add(len);
        self.op.is_none_or(|mine| mine == op) && (everywhere || touches)
    }

    /// Counts a request that the fault concerns. Returns the failure if this request shall fail.
    fn strike(&mut self) -> Option<Failure> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        match &mut self.times {
            Some(0) => None,
            Some(n) => {
                *n -= 1;
                Some(self.failure)
            }
            None => Some(self.failure),
        }
    }
}

/// All planned errors.
#[derive(Default)]
pub(crate) struct FaultPlan {
    faults: Vec<Fault>,
    struck: u64,
    requests: u64,
    /// A flush or fence has failed: no later one succeeds.
    writes_lost: bool,
}

impl FaultPlan {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(crate) fn struck(&self) -> u64 {
        self.struck
    }

    /// Requests that could have failed.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Cancels all planned errors.
    pub(crate) fn heal(&mut self) {
        self.faults.clear();
    }

    /// Does [`strike`](Self::strike) for a request that changes the medium. `settles`: the request
    /// makes earlier writes durable, as a flush or a fence does.
    pub(crate) fn strike_change(
        &mut self,
        (op, offset, len): (Op, u64, u64),
        settles: bool,
    ) -> Result<Option<Failure>, MediaError> {
        if settles && self.writes_lost {
            return Err(MediaError::WritesLost);
        }
        let failure = self.strike(op, offset, len);
        self.writes_lost |= settles && failure.is_some();
        Ok(failure)
    }

    /// Lets every fault count the request; the first one that is due decides.
    pub(crate) fn strike(&mut self, op: Op, offset: u64, len: u64) -> Option<Failure> {
        self.requests += 1;
        let concerned = self
            .faults
            .iter_mut()
            .filter(|fault| fault.concerns(op, offset, len));
        let failure = concerned.fold(None, |found, fault| {
            let now = fault.strike();
            found.or(now)
        });
        self.struck += u64::from(failure.is_some());
        failure
    }
}

/// The methods by which a simulated medium with a [`FaultPlan`] in its state offers the plan.
macro_rules! plans_errors {
    () => {
        /// Plans an error. In memory, `Fault::nth(Op::Read, 0).within(line).for_good()` is a bad
        /// line, and a fence counts as a flush of no bytes.
        pub fn inject(&self, fault: $crate::sim::Fault) {
            self.state.lock().faults.add(fault);
        }

        /// Forgets all planned errors.
        pub fn heal(&self) {
            self.state.lock().faults.heal();
        }

        /// How many planned errors have struck.
        pub fn faults_struck(&self) -> u64 {
            self.state.lock().faults.struck()
        }

        /// Requests so far that could have failed.
        pub fn requests(&self) -> u64 {
            self.state.lock().faults.requests()
        }
    };
}

pub(crate) use plans_errors;
