//! Whether a process could do itself what this one can.
//!
//! The next program runs as the server does. So whoever chooses it gets the server's might. Root in
//! a container, which may have a directory of the mount and no more, must not get it.

use std::fs;

use crate::status::Status;

/// What a process may.
#[derive(Debug, PartialEq, Eq)]
struct Might {
    /// The effective capabilities.
    capabilities: u64,
    /// In how many namespaces of processes it has a number, from that of /proc inwards.
    depth: usize,
}

impl Might {
    fn of(status: &Status) -> Option<Self> {
        Some(Self {
            capabilities: u64::from_str_radix(status.field("CapEff")?, 16).ok()?,
            depth: status.field("NStgid")?.split_whitespace().count(),
        })
    }

    fn has_that_of(&self, other: &Self) -> bool {
        self.capabilities & other.capabilities == other.capabilities && self.depth == other.depth
    }
}

/// Returns whether a process that waits for this one's answer, so that its number stays its own,
/// has all capabilities of this process and is in no container that this process is not in. 0 is
/// the number of a process that cannot be seen from here.
pub(super) fn is_ours(pid: u32) -> bool {
    let process = pid.to_string();
    let might = |process: &str| Might::of(&Status::of(process)?);
    let (Some(theirs), Some(ours)) = (might(&process), might("self")) else {
        return false;
    };
    let is_same = |what: &str| {
        let link = |process: &str| fs::read_link(format!("/proc/{process}/ns/{what}"));
        match (link(&process), link("self")) {
            (Ok(theirs), Ok(ours)) => theirs == ours,
            // Those who can do more than we can may not be looked at.
            (theirs, _) => theirs.is_err(),
        }
    };
    theirs.has_that_of(&ours) && ["mnt", "user"].into_iter().all(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_its_own_might() {
        assert!(is_ours(std::process::id()));
        assert!(!is_ours(0) && !is_ours(u32::MAX));
    }

    #[test]
    fn less_is_not_enough() {
        let might = |caps: &str, numbers: &str| {
            let status = format!("Name:\tx\nNStgid:\t{numbers}\nCapEff:\t{caps}\n");
            Might::of(&(&*status).into()).unwrap()
        };
        let server = might("00000000002c0003", "812");
        for (caps, numbers, has) in [
            ("000001ffffffffff", "900", true),
            ("00000000002c0003", "900", true),
            ("00000000000c0003", "900", false),
            ("0000000000000000", "900", false),
            ("000001ffffffffff", "900\t1", false),
        ] {
            assert_eq!(
                might(caps, numbers).has_that_of(&server),
                has,
                "{caps} {numbers}"
            );
        }
        assert_eq!(Might::of(&"CapEff:\t1\n".into()), None);
    }
}
