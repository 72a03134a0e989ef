//! CRC-32C (Castagnoli) and CRC-64/NVME, of whole chunks and of chunks that come in pieces.

/// A CRC as the product of polynomials that it is. The coefficient of x^0 is in the highest bit, as in all of this module.
struct Field {
    /// The bit of x^0.
    one: u64,
    polynomial: u64,
    /// x^(8 * 2^n) at position n: what 2^n zero bytes behind a message multiply its CRC by.
    powers: [u64; 64],
}

const CRC32C: Field = Field::new(1 << 31, 0x82f6_3b78);
const CRC64NVME: Field = Field::new(1 << 63, 0x9a6c_9329_ac4b_c9b5);

impl Field {
    const fn new(one: u64, polynomial: u64) -> Self {
        let mut field = Self { one, polynomial, powers: [one >> 8; 64] };
        let mut position = 1;
        while position < field.powers.len() {
            let before = field.powers[position - 1];
            field.powers[position] = field.multiply(before, before);
            position += 1;
        }
        field
    }

    /// The product of two polynomials modulo that of the CRC.
    const fn multiply(&self, multiplicand: u64, multiplier: u64) -> u64 {
        let (mut product, mut power, mut bit) = (0, multiplicand, self.one);
        while bit != 0 {
            if multiplier & bit != 0 {
                product ^= power;
            }
            power = (power >> 1) ^ (self.polynomial & 0_u64.wrapping_sub(power & 1));
            bit >>= 1;
        }
        product
    }

    /// A twentieth or less of what combining by matrices costs, as crc-fast and crc32c do.
    fn placed(&self, crc: u64, behind_bytes: u64) -> u64 {
        let mut product = crc;
        let mut left = behind_bytes;
        while left != 0 {
            product = self.multiply(product, self.powers[left.trailing_zeros() as usize]);
            left &= left - 1;
        }
        product
    }
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumKind {
    /// CRC-32C, in the lower half: chunks stored by an earlier kvring.
    Crc32c,
    /// CRC-64/NVME.
    Crc64Nvme,
}

impl ChecksumKind {
    pub(crate) fn of(self, bytes: &[u8]) -> u64 {
        match self {
            Self::Crc32c => crc32c(bytes).into(),
            Self::Crc64Nvme => crc_fast::crc64_nvme(bytes),
        }
    }

    /// What a piece with the checksum `crc` adds to that of a message in which `behind_bytes` bytes follow it: the XOR of
    /// this over all pieces is the checksum of the message.
    pub(crate) fn placed(self, crc: u64, behind_bytes: u64) -> u64 {
        match self {
            Self::Crc32c => CRC32C.placed(crc, behind_bytes),
            Self::Crc64Nvme => CRC64NVME.placed(crc, behind_bytes),
        }
    }
}

/// The CRC-64/NVME of a key and of the bytes behind it: bytes that belong to another key have another one.
pub fn checksum_with_key(key: &str, bytes: &[u8]) -> u64 {
    let kind = ChecksumKind::Crc64Nvme;
    kind.placed(kind.of(key.as_bytes()), bytes.len() as u64) ^ kind.of(bytes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PayloadChecksum {
    pub(crate) kind: ChecksumKind,
    pub(crate) value: u64,
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
        let of = |bytes: &[u8]| ChecksumKind::Crc64Nvme.of(bytes);
        assert_eq!(of(b"123456789"), 0xae8b_1486_0a79_9888);
        let by_definition = |bytes: &[u8]| {
            !bytes.iter().fold(u64::MAX, |crc, byte| {
                (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
                    (crc >> 1) ^ (CRC64NVME.polynomial & 0_u64.wrapping_sub(crc & 1))
                })
            })
        };
        let bytes: Vec<u8> = (0..100_100_u32).map(|position| (position * 31 % 251) as u8).collect();
        for length in (0..300).chain([511, 4095, 4096, 4097, 65_536, 99_999]) {
            let bytes = &bytes[length % 7..][..length];
            assert_eq!(of(bytes), by_definition(bytes), "{length}");
        }
    }

    #[test]
    fn placing_is_combining_with_nothing() {
        let lengths = (0..40).map(|bits| 1_u64 << bits);
        for behind_bytes in lengths.flat_map(|length| [length - 1, length, 3 * length + 1]) {
            for crc in [0, 1, 0x8000_0000, 0xe306_9283, u32::MAX] {
                let combined = ::crc32c::crc32c_combine(crc, 0, behind_bytes as usize);
                let placed = ChecksumKind::Crc32c.placed(crc.into(), behind_bytes);
                assert_eq!(placed, combined.into(), "{crc:#x}, {behind_bytes}");
            }
            for crc in [0, 1, 1 << 63, 0xae8b_1486_0a79_9888, u64::MAX] {
                let algorithm = crc_fast::CrcAlgorithm::Crc64Nvme;
                let combined = crc_fast::checksum_combine(algorithm, crc, 0, behind_bytes);
                let placed = ChecksumKind::Crc64Nvme.placed(crc, behind_bytes);
                assert_eq!(placed, combined, "{crc:#x}, {behind_bytes}");
            }
        }
    }
}
