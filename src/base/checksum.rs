//! CRC-32C of what is in the index, CRC-64/NVME of whole chunks and of chunks that come in pieces.

/// Polynomial of CRC-64/NVME. The coefficient of x^0 is in the highest bit, as in all of this module.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;
/// x^0.
const ONE: u64 = 1 << 63;
/// x^(8 * 2^n) at position n: what 2^n zero bytes behind a message multiply its CRC by.
const POWERS: [u64; 64] = {
    let mut powers = [ONE >> 8; 64];
    let mut position = 1;
    while position < powers.len() {
        powers[position] = multiply(powers[position - 1], powers[position - 1]);
        position += 1;
    }
    powers
};

/// The product of two polynomials modulo that of the CRC.
const fn multiply(multiplicand: u64, multiplier: u64) -> u64 {
    let (mut product, mut power, mut bit) = (0, multiplicand, ONE);
    while bit != 0 {
        if multiplier & bit != 0 {
            product ^= power;
        }
        power = (power >> 1) ^ (POLYNOMIAL & 0_u64.wrapping_sub(power & 1));
        bit >>= 1;
    }
    product
}

/// CRC-32C (Castagnoli).
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-64/NVME.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// What a piece with the CRC-64 `crc` adds to that of a message in which `behind_bytes` bytes follow it: the XOR of this over all
/// pieces is the CRC of the message. A twentieth or less of what combining by matrices costs, as crc-fast does.
pub(crate) fn placed(crc: u64, behind_bytes: u64) -> u64 {
    let mut product = crc;
    let mut left = behind_bytes;
    while left != 0 {
        product = multiply(product, POWERS[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    product
}

/// The CRC-64/NVME of a key and of the bytes behind it: bytes that belong to another key have another one.
pub fn checksum_with_key(key: &str, bytes: &[u8]) -> u64 {
    placed(crc64(key.as_bytes()), bytes.len() as u64) ^ crc64(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_front_of_its_bytes() {
        for middle in 0..=9 {
            let (key, bytes) = "123456789".split_at(middle);
            assert_eq!(checksum_with_key(key, bytes.as_bytes()), 0xae8b_1486_0a79_9888);
        }
    }

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

    /// The check value, and the definition bit by bit.
    #[test]
    fn it_is_crc_64_nvme() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        let by_definition = |bytes: &[u8]| {
            !bytes.iter().fold(u64::MAX, |crc, byte| {
                (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
                    (crc >> 1) ^ (POLYNOMIAL & 0_u64.wrapping_sub(crc & 1))
                })
            })
        };
        let bytes: Vec<u8> = (0..100_100_u32).map(|position| (position * 31 % 251) as u8).collect();
        for length in (0..300).chain([511, 4095, 4096, 4097, 65_536, 99_999]) {
            let bytes = &bytes[length % 7..][..length];
            assert_eq!(crc64(bytes), by_definition(bytes), "{length}");
        }
    }

    #[test]
    fn placing_is_combining_with_nothing() {
        let lengths = (0..40).map(|bits| 1_u64 << bits);
        for behind_bytes in lengths.flat_map(|length| [length - 1, length, 3 * length + 1]) {
            for crc in [0, 1, 1 << 63, 0xae8b_1486_0a79_9888, u64::MAX] {
                let algorithm = crc_fast::CrcAlgorithm::Crc64Nvme;
                let combined = crc_fast::checksum_combine(algorithm, crc, 0, behind_bytes);
                assert_eq!(placed(crc, behind_bytes), combined, "{crc:#x}, {behind_bytes}");
            }
        }
    }
}
