package archive

import (
	"bytes"
	"io"

	"filippo.io/age"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Opens tries whether the identities open what is encrypted to the recipients. The error is ErrWrongIdentity where none
// of them does.
func Opens(recipients []Recipient, ids []age.Identity) error {
	const message = "etcd-snapshot"
	var sealed bytes.Buffer
	enc, err := NewEncoder(&sealed, Options{Algorithm: v1.CompressionNone, Recipients: recipients})
	if err != nil {
		return err
	}
	_, err = io.WriteString(enc, message)
	if cerr := enc.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	plain, err := decrypt(&sealed, ids)
	if err == nil {
		_, err = io.ReadAll(plain)
	}
	return err
}
