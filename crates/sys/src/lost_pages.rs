//! Lost pages of mappings: an access to one raises SIGBUS, and should return an error instead of
//! ending the process.
//!
//! The kernel sends SIGBUS for memory that has gone bad (a line of persistent memory that its
//! controller could not correct: `memory_failure`, Documentation/mm/hwpoison.rst), and for a page
//! beyond the end of a truncated file. The handler notes the page as lost and puts a page of zeros
//! in its place, so that the instruction ends. After each access to memory, the caller asks whether
//! one of its pages was lost meanwhile. If so, what it has read is not what is stored, and what it
//! has stored is lost. A lost page stays lost until it is mapped anew.
//!
//! Faults at other addresses go to the handler that SIGBUS had before.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize, fence};

use rustix::io::Errno;

/// Pages that a mapping may lose before all of it counts as lost.
const PAGES: usize = 64;

/// A range of memory whose lost pages are noted. It is never freed, because the handler may be
/// walking the list of ranges; when its mapping is gone, the next mapping reuses it.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The first address; 0 while no mapping has it.
    start: AtomicUsize,
    end: AtomicUsize,
    /// How many pages were lost.
    lost: AtomicUsize,
    /// The addresses of the first lost pages; 0 in unused places.
    pages: [AtomicUsize; PAGES],
    next: AtomicPtr<Watched>,
}

/// The list of all of them.
static WATCHED: AtomicPtr<Watched> = AtomicPtr::new(ptr::null_mut());

/// Marks a range that is being taken.
const TAKEN: usize = usize::MAX;

impl Watched {
    /// Watches `range`, which belongs to the caller until [`end`](Self::end).
    pub(crate) fn begin(range: Range<usize>) -> Result<&'static Self, Errno> {
        install()?;
        let watched =
            match all().find(|w| w.start.compare_exchange(0, TAKEN, Acquire, Relaxed) == Ok(0)) {
                Some(free) => free,
                None => add(),
            };
        watched.pages.iter().for_each(|page| page.store(0, Relaxed));
        watched.lost.store(0, Relaxed);
        watched.end.store(range.end, Relaxed);
        watched.start.store(range.start, SeqCst);
        Ok(watched)
    }

    /// Ends the watch. Nobody touches the memory any more.
    pub(crate) fn end(&self) {
        self.end.store(0, SeqCst);
        self.start.store(0, SeqCst);
    }

    /// Checks that no page of `range` (addresses) was lost in the caller's accesses so far.
    #[inline]
    pub(crate) fn check(&self, range: impl FnOnce() -> Range<usize>) -> Result<(), Errno> {
        // The caller's loads happen before this check. If another thread has lost a page meanwhile,
        // the caller's store to it came after the page was noted: the kernel interrupts every
        // processor that could still reach the old page.
        fence(Acquire);
        match self.lost.load(Relaxed) {
            0 => Ok(()),
            n => self.look(n, range()),
        }
    }

    #[cold]
    fn look(&self, lost: usize, range: Range<usize>) -> Result<(), Errno> {
        let touches = |page: usize| page < range.end && range.start < page + page_size();
        let hit = |page: &AtomicUsize| match page.load(Acquire) {
            // Counted, but not written down yet.
            0 => true,
            page => touches(page),
        };
        if lost > PAGES || self.pages.iter().take(lost).any(hit) {
            Err(Errno::IO)
        } else {
            Ok(())
        }
    }

    fn has(&self, address: usize) -> bool {
        // In this order: a range that is being taken has no valid end.
        let end = self.end.load(SeqCst);
        (self.start.load(SeqCst)..end).contains(&address)
    }

    /// Notes a page. The handler calls it: it uses atomics only.
    fn note(&self, page: usize) {
        let number = self.lost.fetch_add(1, SeqCst);
        if let Some(place) = self.pages.get(number) {
            place.store(page, Release);
        }
    }
}

fn all() -> impl Iterator<Item = &'static Watched> {
    let at = |next: &AtomicPtr<Watched>| {
        // SAFETY: null, or a range that `add` has leaked.
        unsafe { next.load(Acquire).as_ref() }
    };
    std::iter::successors(at(&WATCHED), move |watched| at(&watched.next))
}

/// Adds a range to the list, already taken.
fn add() -> &'static Watched {
    let new = Box::leak(Box::new(Watched {
        start: AtomicUsize::new(TAKEN),
        end: AtomicUsize::new(0),
        lost: AtomicUsize::new(0),
        pages: [const { AtomicUsize::new(0) }; PAGES],
        next: AtomicPtr::new(ptr::null_mut()),
    }));
    let mut head = WATCHED.load(Acquire);
    loop {
        new.next.store(head, Relaxed);
        match WATCHED.compare_exchange_weak(head, new, SeqCst, Acquire) {
            Ok(_) => return new,
            Err(other) => head = other,
        }
    }
}

fn page_size() -> usize {
    // rustix has this number from the kernel before the program begins.
    rustix::param::page_size()
}

/// The handler that SIGBUS had before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
fn install() -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        page_size();
        // SAFETY: a sigaction of zeros is valid: the default action.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both arguments are what sigaction(2) wants; without a new action it only returns
        // the present one.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) } != 0 {
            return Err(errno());
        }
        // Set before the handler is there, which must not wait for it.
        let _ = BEFORE.set(before);
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        #[expect(
            clippy::as_conversions,
            reason = "a function's address has no other way"
        )]
        let handler = handle as *const ();
        action.sa_sigaction = handler.expose_provenance();
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `handle` has the signature that SA_SIGINFO asks for and does only what a handler
        // may: atomics, mmap(2), sigaction(2).
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    })
}

fn errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The handler of SIGBUS.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a siginfo_t, which has the address if the kernel itself has sent the
    // signal.
    let (address, is_fault) = unsafe { ((*info).si_addr().addr(), (*info).si_code > 0) };
    if let Some(watched) = all().find(|watched| is_fault && watched.has(address)) {
        let page = address - address % page_size();
        // Noted first: a thread that sees the zeros sees the note too.
        watched.note(page);
        if put_zeros(page) {
            return;
        }
    }
    hand_on(signal, info, context, is_fault);
}

/// Puts a page of zeros where a page was lost. False when that fails.
fn put_zeros(page: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: it replaces a page of a watched mapping, which belongs to its owner until `end`. The
    // owner accesses it by atomics and whole words only, uses nothing that it holds before it has
    // asked whether the page was lost, and unmaps it with the rest.
    let mapped = unsafe {
        let page = ptr::without_provenance_mut(page);
        libc::mmap(page, page_size(), protection, flags, -1, 0)
    };
    mapped != libc::MAP_FAILED
}

/// Passes the signal on: to the earlier handler, or to the default action. The default ends the
/// process when the instruction is tried again, or, if no instruction caused the signal, when the
/// signal is sent again.
fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_fault: bool) {
    let Some(before) = BEFORE.get() else {
        return;
    };
    if before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN {
        // SAFETY: `before` came from sigaction(2).
        unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
        if !is_fault {
            // SAFETY: raise(3) takes any number.
            unsafe { libc::raise(signal) };
        }
    } else if before.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: with SA_SIGINFO, the handler is a function of three arguments.
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(before.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO, the handler is a function of one argument.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(before.sa_sigaction) };
        handler(signal);
    }
}
