package archive

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
	"golang.org/x/crypto/ssh"
)

// maxIdentityFile bounds what is read in search of keys.
const maxIdentityFile = 1 << 20

// LoadIdentityFile reads the identities in the file at path, as ParseIdentities does. The warning is not empty where
// everyone on the machine can read the file.
func LoadIdentityFile(path string) (ids []age.Identity, warning string, err error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, "", fmt.Errorf("read identity file as uid %d: %w", os.Geteuid(), err)
		}
		return nil, "", fmt.Errorf("read identity file: %w", err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o007 != 0 {
		warning = fmt.Sprintf("identity file %s is open to every user of this machine (mode %04o): chmod 600 it", path, fi.Mode().Perm())
	}
	ids, err = ParseIdentities(f)
	if err != nil {
		return nil, warning, fmt.Errorf("identity file %s: %w", path, err)
	}
	return ids, warning, nil
}

// ParseIdentities reads private keys: lines AGE-SECRET-KEY-1... and AGE-SECRET-KEY-PQ-1..., with empty lines and
// comments (#) as age-keygen writes them, or one SSH private key without a passphrase. Errors never repeat any part
// of what was read.
func ParseIdentities(r io.Reader) ([]age.Identity, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxIdentityFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxIdentityFile {
		return nil, errors.New("is longer than 1 MiB: not an identity file")
	}
	switch t := bytes.TrimSpace(b); {
	case isAge(t) || bytes.HasPrefix(t, []byte(armor.Header)):
		return nil, errors.New("is itself encrypted with age: decrypt it with age -d first")
	case bytes.HasPrefix(t, []byte("-----BEGIN")):
		return parseSSHIdentity(t)
	}

	var ids []age.Identity
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		id, err := parseIdentity(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil, errors.New("holds no identity: a line AGE-SECRET-KEY-1... or an SSH private key is expected")
	}
	return ids, nil
}

func parseIdentity(line string) (age.Identity, error) {
	switch {
	case strings.HasPrefix(line, "AGE-SECRET-KEY-PQ-1"):
		if id, err := age.ParseHybridIdentity(line); err == nil {
			return id, nil
		}
		return nil, errors.New("malformed post-quantum identity (AGE-SECRET-KEY-PQ-1...): it is cut short or mistyped")
	case strings.HasPrefix(line, "AGE-SECRET-KEY-1"):
		if id, err := age.ParseX25519Identity(line); err == nil {
			return id, nil
		}
		return nil, errors.New("malformed identity (AGE-SECRET-KEY-1...): it is cut short or mistyped")
	case strings.HasPrefix(line, "AGE-PLUGIN-"):
		return nil, errors.New("identities of age plugins are not supported: decrypt the snapshot with age -d first")
	case strings.HasPrefix(line, "age1"), strings.HasPrefix(line, "ssh-"):
		return nil, errors.New("is a public key (a recipient): the private key that belongs to it is needed")
	}
	return nil, errors.New("is not an identity: AGE-SECRET-KEY-1... or AGE-SECRET-KEY-PQ-1... is expected")
}

func parseSSHIdentity(pem []byte) ([]age.Identity, error) {
	id, err := agessh.ParseIdentity(pem)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		return nil, errors.New("is an SSH key protected by a passphrase: take the passphrase off a copy (ssh-keygen -p -f COPY), or decrypt the snapshot with age -d first")
	}
	if err != nil {
		return nil, errors.New("is not an SSH private key that age can use: ssh-ed25519 or ssh-rsa, whole and without a passphrase")
	}
	return []age.Identity{id}, nil
}

// decrypt opens an age file. Its errors are ErrNoIdentity and ErrWrongIdentity, which say who could open the file, or
// what is wrong with the header.
func decrypt(r io.Reader, ids []age.Identity) (io.Reader, error) {
	var probe headerProbe
	plain, err := age.Decrypt(r, append(slices.Clone(ids), &probe)...)
	if noMatch := (*age.NoIdentityMatchError)(nil); !errors.As(err, &noMatch) {
		return plain, err
	}
	if len(ids) == 0 {
		return nil, &failure{
			msg: fmt.Sprintf("snapshot is encrypted and %v was given: it opens with %s", ErrNoIdentity, probe.needed()),
			is:  []error{ErrNoIdentity},
		}
	}
	return nil, &failure{
		msg: fmt.Sprintf("%v: none of the %d given opens the snapshot: it opens with %s", ErrWrongIdentity, len(ids), probe.needed()),
		is:  []error{ErrWrongIdentity, err},
	}
}

// headerProbe is an identity that opens nothing and keeps what the header says about who can.
type headerProbe struct{ stanzas []*age.Stanza }

func (p *headerProbe) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	p.stanzas = stanzas
	return nil, age.ErrIncorrectIdentity
}

// needed lists the kinds of keys that open the file. age keys are anonymous; for SSH keys the header holds the first
// 32 bits of the fingerprint, of which 5 base64 characters are certain.
func (p *headerProbe) needed() string {
	var list []string
	for _, s := range p.stanzas {
		var text string
		switch {
		case s.Type == "X25519":
			text = "an age identity (AGE-SECRET-KEY-1...)"
		case s.Type == "mlkem768x25519":
			text = "a post-quantum age identity (AGE-SECRET-KEY-PQ-1...)"
		case s.Type == "scrypt":
			text = "a passphrase (decrypt it with age -d first)"
		case strings.HasPrefix(s.Type, "ssh-"):
			text = "the " + s.Type + " private key"
			if len(s.Args) > 0 {
				if tag, err := base64.RawStdEncoding.DecodeString(s.Args[0]); err == nil && len(tag) == 4 {
					text += " whose fingerprint begins with SHA256:" + s.Args[0][:5]
				}
			}
		case strings.HasSuffix(s.Type, "-grease"):
			continue
		default:
			text = fmt.Sprintf("an identity of type %.40q (decrypt it with age -d first)", s.Type)
		}
		if !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	if len(list) == 0 {
		return "no identity at all: its header names no recipient"
	}
	return strings.Join(list, ", or ")
}
