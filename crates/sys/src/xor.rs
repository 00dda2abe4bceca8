//! The exclusive or of two blocks, and the number of bits in which they differ, by the widest
//! instructions of the processor.

/// Sets `out` to the exclusive or of `a` and `b`, and returns the number of bits in which they
/// differ.
///
/// # Panics
/// The lengths are not equal, or no multiple of 8.
pub fn xor_into(a: &[u8], b: &[u8], out: &mut [u8]) -> u64 {
    assert!(a.len() == b.len() && a.len() == out.len() && a.len().is_multiple_of(8));
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vpopcntdq") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { xor_avx512(a, b, out) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            // SAFETY: as above.
            return unsafe { xor_avx2(a, b, out) };
        }
    }
    xor_portable(a, b, out)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vpopcntdq")]
fn xor_avx512(a: &[u8], b: &[u8], out: &mut [u8]) -> u64 {
    xor_portable(a, b, out)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
fn xor_avx2(a: &[u8], b: &[u8], out: &mut [u8]) -> u64 {
    xor_portable(a, b, out)
}

/// The compiler makes vector instructions of this where it may.
#[inline(always)]
fn xor_portable(a: &[u8], b: &[u8], out: &mut [u8]) -> u64 {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let mut bits = 0;
    for ((a, b), out) in words.zip(out.as_chunks_mut::<8>().0) {
        let word = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        *out = word.to_le_bytes();
        bits += u64::from(word.count_ones());
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_counts_the_same() {
        for len in [0, 8, 24, 64, 1032, 4096] {
            let a: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let b: Vec<u8> = (0..len).map(|i| (i * i % 249) as u8).collect();
            let mut out = vec![0; len];
            let expected: u32 = a.iter().zip(&b).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert_eq!(xor_into(&a, &b, &mut out), u64::from(expected));
            assert_eq!(xor_portable(&a, &b, &mut out), u64::from(expected));
            assert!(a.iter().zip(&b).map(|(a, b)| a ^ b).eq(out.iter().copied()));
        }
    }
}
