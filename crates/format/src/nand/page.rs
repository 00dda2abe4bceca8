//! The state of a page of a part.

/// What the cells of a page hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PageState {
    /// Nothing: it reads as bytes of 0xff.
    Erased = 0,
    /// What was programmed.
    Programmed = 1,
    /// A part of what was programmed: more bits are wrong than can be corrected.
    Torn = 2,
    /// So little of what was programmed that it reads as erased.
    Faint = 3,
    /// So many wrong bits that the code takes the page for other content: it reads without an
    /// error, but wrong.
    Miscorrected = 4,
    /// What was programmed, but weakly: it can be read once, and is torn afterwards.
    Marginal = 5,
}

impl PageState {
    #[expect(
        clippy::as_conversions,
        reason = "the discriminants are the codes on disk"
    )]
    pub(super) const fn code(self) -> u8 {
        self as u8
    }

    pub(super) fn from_raw(raw: u8) -> Option<Self> {
        const ALL: [PageState; 6] = [
            PageState::Erased,
            PageState::Programmed,
            PageState::Torn,
            PageState::Faint,
            PageState::Miscorrected,
            PageState::Marginal,
        ];
        ALL.get(usize::from(raw)).copied()
    }
}
