package archive

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
)

// fuzzIdentity opens the corpus. It protects nothing.
const fuzzIdentity = "AGE-SECRET-KEY-1NXTJXZ0XKJPH687FG8TJK9H39ACX8C2X8G5F2QQJR04CN6CRFHYQZCT5AC"

func isOneOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

// Whatever a file holds, the decoder gives a database or one of its errors, and the same each time.
func FuzzDecoder(f *testing.F) {
	id, err := age.ParseX25519Identity(fuzzIdentity)
	require.NoError(f, err)
	const limit = 4 << 20
	decode := func(t *testing.T, raw []byte) (sum [32]byte, n int64, err error) {
		d, err := NewDecoder(bytes.NewReader(raw), id)
		if err != nil {
			return sum, 0, err
		}
		defer d.Close()
		head := make([]byte, boltMagicOffset+4)
		if _, err := io.ReadFull(d, head); err != nil || !isBolt(head) {
			t.Fatalf("the decoder promised a database: % x, %v", head, err)
		}
		h := sha256.New()
		n, err = io.CopyN(h, d, limit)
		if err == io.EOF {
			err = nil
		}
		h.Sum(sum[:0])
		return sum, n, err
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		sum, n, err := decode(t, raw)
		if err != nil && !isOneOf(err, ErrCorrupt, ErrWrongIdentity) {
			t.Fatal(err)
		}
		sum2, n2, err2 := decode(t, raw)
		require.Equal(t, err == nil, err2 == nil)
		if err == nil {
			require.Equal(t, n, n2)
			require.Equal(t, sum, sum2)
		}
	})
}
