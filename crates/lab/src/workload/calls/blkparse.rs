//! Reads a trace that blktrace has made of a block device, as `blkparse` prints it. The disk's
//! requests are made on a file of the volume, like the disk image of a virtual machine.
//!
//! A request for a flush is an fdatasync before the write, a write with FUA one behind it. Discards
//! punch holes. The file has only the parts of the disk that the trace touches, one behind the
//! other, so that a trace of a large disk fits on a small volume.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Bytes, Call, Calls, Pace, Place, What, read_text};

/// The image's name on the volume.
const IMAGE: &str = "disk.img";
/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Parts of this many bytes stay together.
const PART: u64 = 1 << 20;

/// A request of the trace.
struct Request {
    line: usize,
    at: Duration,
    rwbs: String,
    /// The first sector, and how many there are.
    sector: u64,
    sectors: u64,
}

/// Reads the printed trace.
///
/// # Errors
/// The file; there is no request in it.
pub fn read(path: &Path, pace: Pace, seed: u64) -> Result<Calls> {
    let name = path.display().to_string();
    let text = read_text(path)?;
    // Each request is seen several times on its way: when it is queued, if that was traced, when
    // the device gets it, and when it is done. The first of these that the trace has counts.
    let requests = ["Q", "D", "C"].into_iter().find_map(|action| {
        let requests: Vec<_> = text
            .lines()
            .enumerate()
            .filter_map(|(n, line)| request(n + 1, line, action))
            .collect();
        (!requests.is_empty()).then_some(requests)
    });
    let requests = requests.unwrap_or_default();
    ensure!(
        !requests.is_empty(),
        "{name}: no requests; they are printed by `blkparse FILE`"
    );
    let parts = parts(&requests);
    let bytes = parts.len() as u64 * PART;
    let calls = requests.iter().flat_map(|request| calls(request, &parts));
    let before = [
        What::Create(IMAGE.to_owned()),
        What::Write(IMAGE.to_owned(), Place::At(0), Bytes::Random(bytes)),
        What::Fsync(IMAGE.to_owned()),
    ];
    Ok(Calls {
        name,
        before: before
            .into_iter()
            .map(|what| Call {
                line: 0,
                at: None,
                what,
            })
            .collect(),
        calls: calls.collect(),
        pace,
        seed,
    })
}

/// Reads a line such as `8,0 3 1 0.000000000 697 Q WS 223490 + 8 [program]`.
fn request(line: usize, text: &str, action: &str) -> Option<Request> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [device, _, _, at, _, what, rwbs, rest @ ..] = &words[..] else {
        return None;
    };
    if *what != action || !device.contains(',') {
        return None;
    }
    let number = |n: usize| rest.get(n).and_then(|word| word.parse().ok());
    let sectors = match rest.get(1) {
        Some(&"+") => number(2)?,
        _ => 0,
    };
    Some(Request {
        line,
        at: Duration::try_from_secs_f64(at.parse().ok()?).ok()?,
        rwbs: (*rwbs).to_owned(),
        sector: number(0).unwrap_or(0),
        sectors,
    })
}

/// Returns where each part of the disk that is touched lies in the image.
fn parts(requests: &[Request]) -> BTreeMap<u64, u64> {
    let touched = requests.iter().flat_map(|request| {
        let (at, len) = (request.sector * SECTOR, request.sectors * SECTOR);
        at / PART..(at + len).div_ceil(PART)
    });
    let mut parts: BTreeMap<u64, u64> = touched.map(|part| (part, 0)).collect();
    for (n, place) in parts.values_mut().enumerate() {
        *place = n as u64 * PART;
    }
    parts
}

fn calls(request: &Request, parts: &BTreeMap<u64, u64>) -> Vec<Call> {
    let (kind, flags) = match request.rwbs.strip_prefix('F') {
        Some(rest) => (rest, true),
        None => (request.rwbs.as_str(), false),
    };
    let flush = || What::Fdatasync(IMAGE.to_owned());
    let mut whats = Vec::new();
    if flags {
        whats.push(flush());
    }
    let mut at = request.sector * SECTOR;
    let end = at + request.sectors * SECTOR;
    while at < end {
        let len = (end - at).min(PART - at % PART);
        let place = parts[&(at / PART)] + at % PART;
        let image = IMAGE.to_owned();
        match kind.chars().next() {
            Some('W') => whats.push(What::Write(image, Place::At(place), Bytes::Random(len))),
            Some('R') => whats.push(What::Read(image, Place::At(place), len)),
            Some('D') => whats.push(What::Punch(image, place..place + len)),
            _ => {}
        }
        at += len;
    }
    if kind.get(1..).is_some_and(|rest| rest.contains('F')) {
        whats.push(flush());
    }
    let call = |what| Call {
        line: request.line,
        at: Some(request.at),
        what,
    };
    whats.into_iter().map(call).collect()
}
