//! The processor's cache: writing lines back, storing past it, waiting for both.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a cache line, on every x86-64 processor.
pub(crate) const LINE: usize = 64;

/// How lines are written back. Intel's manual, volume 2, under the instructions' names:
/// `clflushopt` and `clwb` of different lines overtake each other and later stores until an SFENCE,
/// a locked instruction or the like; `clwb` may keep the line in the cache; `clflush` waits for
/// each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) enum WriteBack {
    Clwb,
    ClflushOpt,
    Clflush,
    None,
}

impl WriteBack {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::None => "none",
        }
    }
}

/// Returns the best way that this processor has.
pub(crate) fn detect() -> WriteBack {
    static FOUND: OnceLock<WriteBack> = OnceLock::new();
    *FOUND.get_or_init(arch::detect)
}

/// Returns when the memory has accepted every line that this thread has begun to write back, and
/// every store past the cache. On x86-64, a thread that hands over through a lock has done the
/// same: unlocking is a locked instruction.
pub fn store_fence() {
    arch::store_fence();
}

pub(crate) use arch::{load_words, store_past_cache};

fn load_one_by_one(words: &[AtomicU64], out: &mut [[u8; 8]]) {
    for (word, out) in words.iter().zip(out) {
        *out = word.load(Relaxed).to_ne_bytes();
    }
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};

    use super::{AtomicU64, WriteBack};

    pub(super) fn detect() -> WriteBack {
        // Intel's manual, volume 2, CPUID: leaf 7, EBX bit 24 is CLWB, bit 23 CLFLUSHOPT. CLFLUSH
        // came with SSE2, which every x86-64 processor has.
        if __cpuid(0).eax < 7 {
            return WriteBack::Clflush;
        }
        let ebx = __cpuid_count(7, 0).ebx;
        match (ebx >> 24 & 1, ebx >> 23 & 1) {
            (1, _) => WriteBack::Clwb,
            (_, 1) => WriteBack::ClflushOpt,
            _ => WriteBack::Clflush,
        }
    }

    pub(super) fn store_fence() {
        // SAFETY: every x86-64 processor has SSE, to which SFENCE belongs.
        unsafe { _mm_sfence() };
    }

    impl WriteBack {
        pub(crate) fn line(self, word: &AtomicU64) {
            let at = word.as_ptr();
            // SAFETY: each instruction takes an address of readable memory, which a reference is,
            // and changes no content. `detect` has found the processor to have it. The block is not
            // declared `nomem`, so the compiler moves no store from before it to behind it.
            unsafe {
                match self {
                    Self::Clwb => asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags)),
                    Self::ClflushOpt => {
                        asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags));
                    }
                    Self::Clflush => {
                        asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags));
                    }
                    Self::None => {}
                }
            }
        }
    }

    /// From this many bytes on, the processor's own copy is quicker: it fetches lines ahead, where
    /// a loop over words waits for each.
    const LONG: usize = 512;

    /// Copies whole words out, as many as both slices have.
    pub(crate) fn load_words(words: &[AtomicU64], out: &mut [[u8; 8]]) {
        let n = words.len().min(out.len());
        if n * 8 < LONG {
            return super::load_one_by_one(words, out);
        }
        // SAFETY: both places have that many bytes and do not overlap, as `out` belongs to nobody
        // else. What REP MOVSB loads while other threads store is promised only to be from before
        // or after. The direction flag is clear, as the ABI demands.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") n * 8 => _,
                inout("rsi") words.as_ptr() => _,
                inout("rdi") out.as_mut_ptr() => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Stores whole words past the cache (MOVNTI), as many as both slices have.
    pub(crate) fn store_past_cache(words: &[AtomicU64], values: &[[u8; 8]]) {
        for (word, value) in words.iter().zip(values) {
            let value = u64::from_ne_bytes(*value);
            // SAFETY: MOVNTI stores one aligned word in one piece, where an atomic store could go.
            // It is weaker in one way only: other threads may see it later than this thread's next
            // stores. The caller documents that for its own callers, and nothing here relies on
            // that order before a fence.
            unsafe {
                asm!(
                    "movnti [{}], {}",
                    in(reg) word.as_ptr(),
                    in(reg) value,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

/// Processors without such instructions: ordinary stores, and the kernel writes pages back.
#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};

    use super::{AtomicU64, WriteBack};

    pub(super) fn detect() -> WriteBack {
        WriteBack::None
    }

    pub(super) fn store_fence() {
        std::sync::atomic::fence(SeqCst);
    }

    impl WriteBack {
        pub(crate) fn line(self, _word: &AtomicU64) {}
    }

    /// Copies whole words out, as many as both slices have.
    pub(crate) fn load_words(words: &[AtomicU64], out: &mut [[u8; 8]]) {
        super::load_one_by_one(words, out);
    }

    pub(crate) fn store_past_cache(words: &[AtomicU64], values: &[[u8; 8]]) {
        for (word, value) in words.iter().zip(values) {
            word.store(u64::from_ne_bytes(*value), Relaxed);
        }
    }
}
