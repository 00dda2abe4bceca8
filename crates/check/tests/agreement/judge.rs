//! The two judgements of a case: the checker judges the bytes, e2fsck a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use stetfs_check::{Checker, Report};
use tempfile::NamedTempFile;

use crate::cases::Case;
use crate::volumes::Volume;

/// Damage can make e2fsck take all memory or run for minutes. The limits are KiB of address space
/// and one second of processor time.
const LIMITED_E2FSCK: &str = "ulimit -v 400000; ulimit -t 1; exec e2fsck -fn \"$1\"";

/// e2fsck's judgement of a volume.
#[derive(Debug)]
pub struct Said {
    /// Its exit status; 4 and above mean errors.
    pub status: i32,
    /// Its complaints; it may complain and exit with 0.
    pub complaints: Vec<String>,
}

pub struct Judgement {
    pub ours: Report,
    pub e2fsck: Said,
}

/// A volume in memory and in a file, which is damaged and restored.
pub struct Judge<'v> {
    volume: &'v Volume,
    bytes: Vec<u8>,
    file: File,
    path: NamedTempFile,
    checker: Checker,
}

impl<'v> Judge<'v> {
    pub fn new(volume: &'v Volume) -> Self {
        let path = tempfile::Builder::new()
            .tempfile_in(volumes_dir())
            .expect("a scratch file");
        std::fs::write(&path, &volume.bytes).expect("a scratch file");
        Self {
            volume,
            bytes: volume.bytes.clone(),
            file: File::options()
                .write(true)
                .open(&path)
                .expect("a scratch file"),
            path,
            checker: Checker::keeping(1000),
        }
    }

    pub fn judge(&mut self, case: &Case) -> Judgement {
        for (offset, bytes) in &case.changes {
            self.bytes[*offset..*offset + bytes.len()].copy_from_slice(bytes);
            self.file
                .write_all_at(bytes, *offset as u64)
                .expect("the image");
        }
        let ours = self.checker.check(self.bytes.as_slice());
        let e2fsck = self.e2fsck();
        for (offset, bytes) in &case.changes {
            let old = &self.volume.bytes[*offset..*offset + bytes.len()];
            self.bytes[*offset..*offset + bytes.len()].copy_from_slice(old);
            self.file
                .write_all_at(old, *offset as u64)
                .expect("the image");
        }
        Judgement { ours, e2fsck }
    }

    fn e2fsck(&self) -> Said {
        let path = self.path.path();
        let output = Command::new("sh")
            .args(["-c", LIMITED_E2FSCK, "e2fsck"])
            .arg(path)
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let name = path.to_string_lossy();
        let complaints = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("Pass "))
            .filter(|line| !line.starts_with("e2fsck 1.") && !line.starts_with(&*name))
            .filter(|line| !line.contains("contiguous), ") && !line.contains("still has errors"))
            .filter(|line| !is_suggestion(line) && !is_answer(line))
            .map(str::to_owned)
            .collect();
        // If e2fsck was killed at its limits, it did not find the volume clean.
        let status = output.status.code().unwrap_or(i32::MAX);
        Said { status, complaints }
    }
}

/// Whether the line suggests an improvement: that is not an error.
fn is_suggestion(line: &str) -> bool {
    [
        "could be more shallow",
        "could be shorter",
        "could be narrower",
    ]
    .iter()
    .any(|text| line.contains(text))
}

/// Whether the line is the prompt and answer after a complaint.
fn is_answer(line: &str) -> bool {
    line.strip_suffix("? no")
        .is_some_and(|prompt| !prompt.contains('.'))
}

/// Returns the directory for scratch files, in memory if possible.
fn volumes_dir() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    }
}
