//! Panics of the code under test, as values.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// The code under test panicked, with this message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(String);

/// Runs `run`; a panic in it prints nothing.
///
/// # Errors
/// It panicked.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, Panicked> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_CAUGHT.get() {
                before(info);
            }
        }));
    });
    let outside = IS_CAUGHT.replace(true);
    let done = catch_unwind(AssertUnwindSafe(run));
    IS_CAUGHT.set(outside);
    done.map_err(|panic| Panicked(message(&*panic)))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("(no message)").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_values() {
        assert_eq!(caught(|| 3), Ok(3));
        let n = 7;
        let panicked = caught(|| panic!("for {n}")).map(|()| 0);
        assert_eq!(panicked, Err(Panicked("for 7".to_owned())));
    }
}
