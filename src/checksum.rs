//! CRC-32C (Castagnoli), of whole chunks and of chunks that come in pieces.

/// The polynomial, with the coefficient of x^0 in the highest bit, as in all of this module.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^(8 * 2^n) at position n: what 2^n zero bytes behind a message multiply its CRC by.
const POWERS: [u32; 64] = {
    let mut powers = [1 << 23; 64];
    let mut position = 1;
    while position < powers.len() {
        powers[position] = multiply(powers[position - 1], powers[position - 1]);
        position += 1;
    }
    powers
};

/// CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// What a piece with the CRC-32C `crc` adds to that of a message in which `behind_bytes` bytes follow it: the XOR of this
/// over all pieces is the CRC-32C of the message. A fiftieth of what combining by matrices costs, as crc-fast and crc32c do.
pub(crate) fn placed(crc: u32, behind_bytes: u64) -> u32 {
    let mut product = crc;
    let mut left = behind_bytes;
    while left != 0 {
        product = multiply(product, POWERS[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    product
}

/// The product of two polynomials modulo the one of CRC-32C.
const fn multiply(multiplicand: u32, multiplier: u32) -> u32 {
    let (mut product, mut power, mut bit) = (0, multiplicand, 1 << 31);
    while bit != 0 {
        if multiplier & bit != 0 {
            product ^= power;
        }
        power = (power >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(power & 1));
        bit >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the catalogue of CRCs (reveng.sourceforge.io), and what another implementation says.
    #[test]
    fn it_is_crc_32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..100_100_u32).map(|position| (position * 31 % 251) as u8).collect();
        for length in (0..300).chain([511, 4095, 4096, 4097, 65_536, 99_999]) {
            for start in [0, 1, 7] {
                let bytes = &bytes[start..start + length];
                assert_eq!(crc32c(bytes), ::crc32c::crc32c(bytes), "{length} from {start}");
            }
        }
    }

    #[test]
    fn placing_is_combining_with_nothing() {
        let lengths = (0..40).map(|bits| 1_u64 << bits);
        for behind_bytes in lengths.flat_map(|length| [length - 1, length, 3 * length + 1]) {
            for crc in [0, 1, 0x8000_0000, 0xe306_9283, u32::MAX] {
                let combined = ::crc32c::crc32c_combine(crc, 0, behind_bytes as usize);
                assert_eq!(placed(crc, behind_bytes), combined, "{crc:#x}, {behind_bytes}");
            }
        }
    }
}
