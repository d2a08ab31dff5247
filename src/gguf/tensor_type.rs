//! The tensor types of the format: ids, names and block sizes (spec: gguf section 6).
//!
//! Invariant: one row a type; sizes are those of the file. Does not know: layouts inside a block (`formats/`).

macro_rules! tensor_types {
    ($($ty:ident $id:literal $name:literal $values:literal $bytes:literal;)*) => {
        /// A tensor's element or block type.
        #[allow(non_camel_case_types, reason = "the format's own names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum TensorType {
            $(
                #[doc = concat!($name, ": ", $values, " values in ", $bytes, " bytes")]
                $ty,
            )*
        }

        impl TensorType {
            /// Every type that a file may hold.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$ty,)*];

            /// The type with this id, if there is one.
            pub fn from_id(id: u32) -> Option<TensorType> {
                match id {
                    $($id => Some(TensorType::$ty),)*
                    _ => None,
                }
            }

            /// The id in the file.
            pub fn id(self) -> u32 {
                match self { $(TensorType::$ty => $id,)* }
            }

            /// The name that people use.
            pub fn name(self) -> &'static str {
                match self { $(TensorType::$ty => $name,)* }
            }

            /// Values in a block (1 for plain types).
            pub const fn block_values(self) -> usize {
                match self { $(TensorType::$ty => $values,)* }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize {
                match self { $(TensorType::$ty => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    F32 0 "F32" 1 4;
    F16 1 "F16" 1 2;
    BF16 30 "BF16" 1 2;
    Q4_0 2 "Q4_0" 32 18;
    Q4_1 3 "Q4_1" 32 20;
    Q5_0 6 "Q5_0" 32 22;
    Q5_1 7 "Q5_1" 32 24;
    Q8_0 8 "Q8_0" 32 34;
    Q2_K 10 "Q2_K" 256 84;
    Q3_K 11 "Q3_K" 256 110;
    Q4_K 12 "Q4_K" 256 144;
    Q5_K 13 "Q5_K" 256 176;
    Q6_K 14 "Q6_K" 256 210;
    IQ2_XXS 16 "IQ2_XXS" 256 66;
    IQ2_XS 17 "IQ2_XS" 256 74;
    IQ2_S 22 "IQ2_S" 256 82;
    IQ3_XXS 18 "IQ3_XXS" 256 98;
    IQ3_S 21 "IQ3_S" 256 110;
    IQ1_S 19 "IQ1_S" 256 50;
    IQ1_M 29 "IQ1_M" 256 56;
    IQ4_NL 20 "IQ4_NL" 32 18;
    IQ4_XS 23 "IQ4_XS" 256 136;
    TQ1_0 34 "TQ1_0" 256 54;
    TQ2_0 35 "TQ2_0" 256 66;
    MXFP4 39 "MXFP4" 32 17;
    NVFP4 40 "NVFP4" 64 36;
    Q1_0 41 "Q1_0" 128 18;
    Q2_0 42 "Q2_0" 64 18;
    I8 24 "I8" 1 1;
    I16 25 "I16" 1 2;
    I32 26 "I32" 1 4;
    I64 27 "I64" 1 8;
    F64 28 "F64" 1 8;
}

impl TensorType {
    /// Bytes of a row of `cols` values, which must be whole blocks.
    pub fn row_bytes(self, cols: usize) -> usize {
        cols / self.block_values() * self.block_bytes()
    }

    /// True for F32, F16 and BF16.
    pub fn is_float(self) -> bool {
        matches!(self, TensorType::F32 | TensorType::F16 | TensorType::BF16)
    }

    /// True for the block types, which have a product order of their own.
    pub fn is_quantised(self) -> bool {
        self.block_values() > 1
    }
}

impl serde::Serialize for TensorType {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
