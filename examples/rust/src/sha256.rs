//! SHA-256 (FIPS 180-4), and the deterministic CBOR that block hashes are taken over (KV-HASH-2).

use std::sync::LazyLock;

pub type Hash = [u8; 32];

/// The first 32 bits of the fractional parts of a root of the first primes: the constants of FIPS 180-4.
fn constants(count: usize, root: fn(f64) -> f64) -> Vec<u32> {
    let is_prime = |n: &u64| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0);
    let primes = (2u64..).filter(is_prime).take(count);
    primes.map(|p| (root(p as f64).fract() * 4294967296.0) as u32).collect()
}

static ROUNDS: LazyLock<Vec<u32>> = LazyLock::new(|| constants(64, f64::cbrt));

pub fn sha256(message: &[u8]) -> Hash {
    let (k, start) = (&*ROUNDS, constants(8, f64::sqrt));
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).div_ceil(64) * 64 - 8, 0);
    padded.extend((message.len() as u64 * 8).to_be_bytes());
    let mut state: [u32; 8] = start.try_into().expect("eight of them");
    for chunk in padded.chunks(64) {
        let words = chunk.chunks(4).map(|four| u32::from_be_bytes(four.try_into().expect("four bytes")));
        let mut w: Vec<u32> = words.collect();
        for i in 16..64 {
            let (a, b) = (w[i - 15], w[i - 2]);
            let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
            let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
            w.push(w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1));
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        for i in 0..64 {
            let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let one = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(k[i]).wrapping_add(w[i]);
            let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let two = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(one), c, b, a, one.wrapping_add(two));
        }
        for (sum, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *sum = sum.wrapping_add(word);
        }
    }
    let bytes: Vec<u8> = state.iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.try_into().expect("32 bytes")
}

/// The head of a CBOR item, in its shortest form.
pub fn head(kind: u8, number: u64, out: &mut Vec<u8>) {
    match number {
        0..=23 => out.push(kind << 5 | number as u8),
        24..=0xff => out.extend([kind << 5 | 24, number as u8]),
        0x100..=0xffff => {
            out.push(kind << 5 | 25);
            out.extend((number as u16).to_be_bytes());
        }
        0x10000..=0xffff_ffff => {
            out.push(kind << 5 | 26);
            out.extend((number as u32).to_be_bytes());
        }
        _ => {
            out.push(kind << 5 | 27);
            out.extend(number.to_be_bytes());
        }
    }
}

/// The hash of a block of tokens behind `parent`: of the array [parent, tokens, null] (KV-HASH-1).
pub fn block_hash(parent: &Hash, tokens: &[i64]) -> Hash {
    let mut input = Vec::with_capacity(64 + 5 * tokens.len());
    head(4, 3, &mut input);
    head(2, 32, &mut input);
    input.extend(parent);
    head(4, tokens.len() as u64, &mut input);
    for token in tokens {
        head(0, *token as u64, &mut input); // tokens are not negative (KV-REQ-1)
    }
    input.push(0xf6);
    sha256(&input)
}

/// The parent of a first block: the hash of the seed as a CBOR text (KV-HASH-3).
pub fn none_hash(seed: &str) -> Hash {
    let mut input = Vec::new();
    head(3, seed.len() as u64, &mut input);
    input.extend(seed.bytes());
    sha256(&input)
}
