//! The plan of errors: which request fails, how, and for how long.

use std::ops::Range;

use rustix::io::Errno;

use crate::error::{MediaError, Op};

/// A planned error. `Fault::nth(Op::Write, 3)` lets the fourth write from now fail, once, with EIO.
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
    /// The first sectors of a write get there, the rest does not; EIO. Other requests do nothing.
    Torn {
        /// How many.
        sectors: u32,
    },
}

impl Failure {
    /// What the request says.
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
    /// The request of this kind that comes after `skip` others of it.
    pub fn nth(op: Op, skip: u64) -> Self {
        Self {
            op: Some(op),
            range: 0..u64::MAX,
            skip,
            times: Some(1),
            failure: Failure::Error(Errno::IO),
        }
    }

    /// The request of any kind that comes after `skip` others.
    pub fn nth_of_any(skip: u64) -> Self {
        Self {
            op: None,
            ..Self::nth(Op::Read, skip)
        }
    }

    /// Only requests that touch these bytes count and fail. Flushes touch none.
    pub fn within(mut self, bytes: Range<u64>) -> Self {
        self.range = bytes;
        self
    }

    /// As many requests in a row fail.
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Every such request from the first on fails.
    pub fn for_good(mut self) -> Self {
        self.times = None;
        self
    }

    /// How they fail.
    pub fn failing(mut self, failure: Failure) -> Self {
        self.failure = failure;
        self
    }

    fn concerns(&self, op: Op, offset: u64, len: u64) -> bool {
        let everywhere = self.range == (0..u64::MAX);
        let touches = offset < self.range.end && self.range.start < offset.saturating_add(len);
        self.op.is_none_or(|mine| mine == op) && (everywhere || touches)
    }

    /// Counts a request that it concerns; the failure, if it is this one's turn.
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
    /// What settles earlier writes has failed: nothing will settle any more.
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

    /// No error is planned any more.
    pub(crate) fn heal(&mut self) {
        self.faults.clear();
    }

    /// [`strike`](Self::strike) for a request that changes the medium; whether it settles what was
    /// written before it, as a flush or a fence does.
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

    /// Every fault counts the request; the first whose turn it is decides.
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

/// What a simulated medium whose state has a [`FaultPlan`] shows of it.
macro_rules! plans_errors {
    () => {
        /// Plans an error. In memory `Fault::nth(Op::Read, 0).within(line).for_good()` is a line
        /// that has gone bad, and a fence a flush of no bytes.
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
