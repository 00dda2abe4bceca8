//! How a command fails: what went wrong, what the user can do, and the exit code.

use std::any::Any;
use std::error::Error;
use std::fmt::{self, Display};

use stetfs::Kind;

/// The result of a command's parts.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command stops. Printed by `main` as `stetfs: what`, and the advice on a line of its own.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    advice: Option<String>,
    /// The process's exit code.
    pub(crate) code: u8,
}

impl Failure {
    /// A failure in these words.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            advice: None,
            code: 1,
        }
    }

    /// A failure that has been told already.
    pub(crate) fn said() -> Self {
        Self::new("")
    }

    /// Tells the user.
    pub(crate) fn tell(&self) {
        if !self.what.is_empty() {
            eprintln!("stetfs: {self}");
        }
    }

    /// Says what was being done: `context: what`.
    pub(crate) fn context(mut self, context: impl Display) -> Self {
        self.what = format!("{context}: {}", self.what);
        self
    }

    /// Says what the user can do, unless a place nearer to the cause has said it.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.get_or_insert(advice.into());
        self
    }

    /// Sets the exit code.
    pub(crate) fn exit(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.advice {
            Some(advice) => write!(f, "\n  -> {advice}"),
            None => Ok(()),
        }
    }
}

/// Everything that is an error; its sources are told too, unless it repeats them itself. What the volume answers comes with
/// what can be done about it.
impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let answer = (&error as &dyn Any).downcast_ref::<stetfs::Error>();
        let advice = answer.and_then(|e| advice(e.kind())).map(str::to_owned);
        let mut what = plain(&error);
        let mut source = error.source();
        while let Some(cause) = source {
            let text = plain(cause);
            if !what.contains(&text) {
                what = format!("{what}: {text}");
            }
            source = cause.source();
        }
        Self {
            advice,
            ..Self::new(what)
        }
    }
}

/// What a user can do about damage.
pub(crate) const DAMAGED: &str =
    "the volume is damaged; look with stetfs fsck -n IMAGE, repair with stetfs fsck IMAGE";

/// What a user can do about an answer of the volume, where there is more to do than to read it.
fn advice(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Corrupted => DAMAGED,
        Kind::Io => {
            "the device fails; copy what can still be read, and look at the kernel's messages (dmesg)"
        }
        Kind::NoSpace => {
            "stetfs info IMAGE shows what is free: blocks, inodes, and what is reserved for root"
        }
        _ => return None,
    })
}

/// An error's words, without the `(os error 2)` of the standard library.
fn plain(error: &dyn Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(at) if text.ends_with(')') => text[..at].to_owned(),
        _ => text,
    }
}

/// Adds context and advice to results.
pub(crate) trait Explain<T> {
    /// Says what was being done when it failed.
    fn during(self, context: impl FnOnce() -> String) -> Result<T>;
    /// Says what the user can do about it.
    fn or_advise(self, advice: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Failure>> Explain<T> for Result<T, E> {
    fn during(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| e.into().context(context()))
    }

    fn or_advise(self, advice: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| e.into().advise(advice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_comes_first_and_the_nearest_advice_stays() {
        let failure = std::fs::read("/nowhere")
            .during(|| "/nowhere".to_owned())
            .or_advise(|| "look elsewhere".to_owned())
            .or_advise(|| "give up".to_owned())
            .unwrap_err();
        assert_eq!(
            failure.to_string(),
            "/nowhere: No such file or directory\n  -> look elsewhere"
        );
    }
}
