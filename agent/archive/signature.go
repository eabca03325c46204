package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// SignatureNamespace is what signatures of manifests are made for: ssh-keygen's -n. A signature that the same key made
// for anything else is none of a manifest.
const SignatureNamespace = "manifest@etcdsnapshot.dev"

// Fields of a policy that hold keys of signatures.
const (
	SigningKeyField  = "spec.signing.ssh.keyFile"
	TrustedKeysField = "spec.signing.ssh.trustedKeys"
)

// MaxSignatureSize in bytes; a longer file is not read as a signature. One by an Ed25519 key has 310.
const MaxSignatureSize = 16 << 10

// maxKeyFile bounds what is read in search of keys.
const maxKeyFile = 1 << 20

// Signer signs manifests, as `ssh-keygen -Y sign -n manifest@etcdsnapshot.dev` does.
type Signer struct{ key ssh.Signer }

// LoadSigner reads an SSH private key of type ssh-ed25519 without a passphrase. The error is a *FieldError and repeats
// nothing of what was read.
func LoadSigner(path string) (*Signer, error) {
	b, err := readKeyFile(path)
	if err != nil {
		return nil, &FieldError{SigningKeyField, err}
	}
	key, err := ssh.ParsePrivateKey(b)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		return nil, &FieldError{SigningKeyField, fmt.Errorf("%s is protected by a passphrase, which nobody is there to type: make a key without one (ssh-keygen -t ed25519 -N '')", path)}
	}
	if err != nil {
		return nil, &FieldError{SigningKeyField, fmt.Errorf("%s is not an SSH private key: ssh-keygen -t ed25519 makes one", path)}
	}
	if err := checkKeyType(key.PublicKey()); err != nil {
		return nil, &FieldError{SigningKeyField, fmt.Errorf("%s: %w", path, err)}
	}
	return &Signer{key}, nil
}

// Sign gives the armored signature of a manifest: the file that `ssh-keygen -Y verify -s` takes.
func (s *Signer) Sign(manifest []byte) ([]byte, error) {
	sig, err := sshsig.Sign(bytes.NewReader(manifest), s.key, sshsig.HashSHA512, SignatureNamespace)
	if err != nil {
		return nil, fmt.Errorf("sign manifest: %w", err)
	}
	return sshsig.Armor(sig), nil
}

// Fingerprint names the key as ssh-keygen -l does.
func (s *Signer) Fingerprint() string { return ssh.FingerprintSHA256(s.key.PublicKey()) }

// TrustedKeys are the public keys of those whose signatures count. None of them trusts nobody: see Verify.
type TrustedKeys []ssh.PublicKey

// ParseTrustedKeys reads public keys of type ssh-ed25519 as they stand in a .pub file. Every error is a *FieldError that
// names the entry.
func ParseTrustedKeys(list []string) (TrustedKeys, error) {
	var keys TrustedKeys
	for i, s := range list {
		key, err := parseTrustedKey(s)
		if err != nil {
			return nil, &FieldError{fmt.Sprintf("%s[%d]", TrustedKeysField, i), err}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// PolicyTrustedKeys gives the keys that a policy trusts; nil where it asks for no signatures.
func PolicyTrustedKeys(p *v1.EtcdSnapshotPolicy) (TrustedKeys, error) {
	if p.Spec.Signing == nil {
		return nil, nil
	}
	return ParseTrustedKeys(p.Spec.Signing.SSH.TrustedKeys)
}

// PolicySigner gives the key that a policy signs with; nil where it does not sign. The key must be one that the policy
// trusts, if it trusts any: it would refuse its own snapshots otherwise. Errors are *FieldError.
func PolicySigner(p *v1.EtcdSnapshotPolicy) (*Signer, error) {
	if p.Spec.Signing == nil || p.Spec.Signing.SSH.KeyFile == "" {
		return nil, nil
	}
	s, err := LoadSigner(p.Spec.Signing.SSH.KeyFile)
	if err != nil {
		return nil, err
	}
	trusted, err := PolicyTrustedKeys(p)
	if err == nil && trusted != nil && !trusted.find(s.key.PublicKey()) {
		err = &FieldError{TrustedKeysField, fmt.Errorf("does not hold the public key of %s (%s), with which snapshots are signed: they could not be restored", p.Spec.Signing.SSH.KeyFile, s.Fingerprint())}
	}
	return s, err
}

// LoadTrustedKeys reads a file of public keys: a .pub file, or a list with a key in each line, with or without a name
// before it (ssh-keygen's allowed_signers).
func LoadTrustedKeys(path string) (TrustedKeys, error) {
	b, err := readKeyFile(path)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("-----BEGIN")) {
		return nil, fmt.Errorf("%s is a private key: the public one is needed (ssh-keygen -y -f %s prints it)", path, path)
	}
	var keys TrustedKeys
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, err := parseTrustedKey(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, i+1, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s holds no public key: a line ssh-ed25519 AAAA... is expected", path)
	}
	return keys, nil
}

func parseTrustedKey(line string) (ssh.PublicKey, error) {
	key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return nil, errors.New("is not a public key: ssh-ed25519 AAAA... is expected, as ssh-keygen writes it to a .pub file")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("holds more than one key: each is an entry of its own")
	}
	return key, checkKeyType(key)
}

// checkKeyType leaves one kind: every OpenSSH that can verify signatures has it, and there is nothing to choose wrong.
func checkKeyType(key ssh.PublicKey) error {
	if key.Type() != ssh.KeyAlgoED25519 {
		return fmt.Errorf("keys of type %s do not sign snapshots: use ssh-ed25519 (ssh-keygen -t ed25519)", key.Type())
	}
	return nil
}

func (t TrustedKeys) find(key ssh.PublicKey) bool {
	for _, k := range t {
		if bytes.Equal(k.Marshal(), key.Marshal()) {
			return true
		}
	}
	return false
}

// Verify checks the signature of a manifest, and gives the fingerprint of the key that made it. signature is nil where
// there is none. Every error is ErrUntrusted.
func (t TrustedKeys) Verify(manifest, signature []byte) (fingerprint string, err error) {
	if signature == nil {
		return "", untrustedf("it is not signed")
	}
	sig, err := sshsig.Unarmor(signature)
	if err != nil {
		return "", untrustedf("its signature is damaged, or is none of SSH: %v", err)
	}
	by := ssh.FingerprintSHA256(sig.PublicKey)
	if !t.find(sig.PublicKey) {
		return "", untrustedf("it is signed by the key %s, which is not one of those trusted", by)
	}
	if err := sshsig.Verify(bytes.NewReader(manifest), sig, sig.PublicKey, sig.HashAlgorithm, SignatureNamespace); err != nil {
		return "", untrustedf("it is not what the key %s signed: %v", by, err)
	}
	return by, nil
}

func untrustedf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUntrusted}, args...)...)
}

func readKeyFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read key as uid %d: %w", os.Geteuid(), err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if len(b) > maxKeyFile {
		return nil, fmt.Errorf("%s is longer than 1 MiB: not a key", path)
	}
	return b, nil
}
