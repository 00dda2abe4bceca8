//! The simulated device against a second opinion.
//!
//! The model knows nothing of pending lists: it holds for each sector the versions that it may have after a
//! cut, the first being the certain one. Which write each sector keeps is decided by a hash of the write's
//! position and the sector, given to both.
