package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"golang.org/x/crypto/ssh"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// Where recipients stand in a policy: those of the snapshot, and those of its extras.
const (
	RecipientsField       = "spec.encryption.age.recipients"
	extrasRecipientsField = "spec.extras.encryption.age.recipients"
)

// FieldError is a value of the policy that cannot work.
type FieldError struct {
	// Field is the path of the value: spec.encryption.age.recipients[2].
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// Recipient is a public key that snapshots are encrypted to.
type Recipient struct {
	recipient   age.Recipient
	fingerprint string
	postQuantum bool
}

// Fingerprint names the key without being it: SHA256: and the unpadded base64 of a SHA-256. For an SSH key the hash is
// that of its wire form, as ssh-keygen -l prints it; for an age key that of its canonical text, so that
// `printf %s age1... | openssl dgst -sha256 -binary | base64` gives the same.
func (r Recipient) Fingerprint() string { return r.fingerprint }

// ParseRecipients reads public keys: age1... (X25519), age1pq1... (post-quantum hybrid), ssh-ed25519 and ssh-rsa as
// they stand in an authorized_keys file. Post-quantum keys do not go together with others: each of the others would
// open the snapshot to who can break it. Every error is a *FieldError that names the entry of field, the path of the list.
func ParseRecipients(field string, list []string) ([]Recipient, error) {
	rs := make([]Recipient, 0, len(list))
	first := map[string]int{}
	for i, s := range list {
		entry := fmt.Sprintf("%s[%d]", field, i)
		r, err := parseRecipient(s)
		if err != nil {
			return nil, &FieldError{entry, err}
		}
		if j, ok := first[r.fingerprint]; ok {
			return nil, &FieldError{entry, fmt.Errorf("is the same key as recipients[%d]", j)}
		}
		first[r.fingerprint] = i
		rs = append(rs, r)
	}
	if err := checkMix(field, rs); err != nil {
		return nil, err
	}
	return rs, nil
}

// PolicyRecipients parses who can open a policy's snapshots, and who can open its extras. Errors are ParseRecipients'.
func PolicyRecipients(spec *v1.EtcdSnapshotPolicySpec) (snapshots, extras []Recipient, err error) {
	if spec.Encryption != nil {
		if snapshots, err = ParseRecipients(RecipientsField, spec.Encryption.Age.Recipients); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case spec.Extras == nil:
	case spec.Extras.Encryption == nil:
		extras = snapshots
	default:
		if extras, err = ParseRecipients(extrasRecipientsField, spec.Extras.Encryption.Age.Recipients); err != nil {
			return nil, nil, err
		}
	}
	return snapshots, extras, nil
}

// checkMix refuses what age would refuse with words about labels.
func checkMix(field string, rs []Recipient) error {
	for i, r := range rs {
		if r.postQuantum != rs[0].postQuantum {
			return &FieldError{fmt.Sprintf("%s[%d]", field, i), errors.New(
				"post-quantum recipients (age1pq1...) and others cannot be used together: the others would undo their protection; keep one kind")}
		}
	}
	return nil
}

// Facts are what a manifest says about encryption to rs; nil without recipients.
func Facts(rs []Recipient) *v1.EncryptionFacts {
	if len(rs) == 0 {
		return nil
	}
	f := &v1.EncryptionFacts{Kind: encryptionAge}
	for _, r := range rs {
		f.Recipients = append(f.Recipients, r.fingerprint)
	}
	return f
}

// parseRecipient never repeats the value in an error, except where its form shows that it is public.
func parseRecipient(s string) (Recipient, error) {
	s = strings.TrimSpace(s)
	lower := strings.ToLower(s)
	switch {
	case s == "":
		return Recipient{}, errors.New("is empty")
	case strings.HasPrefix(lower, "age-secret-key-"), strings.HasPrefix(lower, "age-plugin-"), strings.HasPrefix(s, "-----BEGIN"):
		return Recipient{}, errors.New("is a private key, not a recipient: treat it as leaked, and give the public key (age-keygen -y prints it)")
	case strings.HasPrefix(s, "age1pq1"):
		r, err := age.ParseHybridRecipient(s)
		if err != nil {
			return Recipient{}, fmt.Errorf("malformed post-quantum age recipient: %s", withoutValue(err, s))
		}
		return Recipient{recipient: r, fingerprint: fingerprint([]byte(r.String())), postQuantum: true}, nil
	case strings.HasPrefix(s, "age1"):
		r, err := age.ParseX25519Recipient(s)
		if err != nil {
			// An X25519 recipient has 62 characters, always: a 1 within those is a typing error, not a plugin's name.
			if i := strings.LastIndexByte(s, '1'); i > len("age1") && len(s) != len("age1")+58 {
				return Recipient{}, fmt.Errorf("recipients of age plugins (%s1...) are not supported", s[:i])
			}
			return Recipient{}, fmt.Errorf("malformed age recipient: %s", withoutValue(err, s))
		}
		return Recipient{recipient: r, fingerprint: fingerprint([]byte(r.String()))}, nil
	case strings.HasPrefix(s, "ssh-"), strings.HasPrefix(s, "ecdsa-"), strings.HasPrefix(s, "sk-"):
		return parseSSHRecipient(s)
	}
	return Recipient{}, errors.New("is not a recipient: age1..., age1pq1..., ssh-ed25519 or ssh-rsa is expected")
}

func parseSSHRecipient(s string) (Recipient, error) {
	kind, _, _ := strings.Cut(s, " ")
	pk, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(s))
	if err != nil {
		return Recipient{}, fmt.Errorf("malformed %s key: %w", kind, err)
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return Recipient{}, errors.New("holds more than one SSH key: each is an entry of its own")
	}
	var r age.Recipient
	switch pk.Type() {
	case ssh.KeyAlgoED25519:
		r, err = agessh.NewEd25519Recipient(pk)
	case ssh.KeyAlgoRSA:
		r, err = agessh.NewRSARecipient(pk)
	default:
		return Recipient{}, fmt.Errorf("age cannot encrypt to SSH keys of type %s: use ssh-ed25519 or ssh-rsa", pk.Type())
	}
	if err != nil {
		return Recipient{}, fmt.Errorf("%s key: %w", kind, err)
	}
	return Recipient{recipient: r, fingerprint: ssh.FingerprintSHA256(pk)}, nil
}

func fingerprint(b []byte) string {
	h := sha256.Sum256(b)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(h[:])
}

// withoutValue takes the value, which can be 2 KB long, out of age's error.
func withoutValue(err error, s string) string {
	return strings.TrimPrefix(err.Error(), fmt.Sprintf("malformed recipient %q: ", s))
}
