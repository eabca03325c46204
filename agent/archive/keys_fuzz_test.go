package archive

import (
	"bytes"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
)

const (
	fuzzRecipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
	fuzzSSH       = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2mWJ0P4H4h6Hq5F9nq1cQH0p8h3Qv3y0e6m8k1g5aZ name"
)

// FuzzParseRecipients: each line is a recipient with which a file can be encrypted, or an error that names the entry and
// does not repeat a private key.
func FuzzParseRecipients(f *testing.F) {
	for _, text := range []string{fuzzRecipient, fuzzRecipient + "\n" + fuzzRecipient, fuzzSSH, "age1", "age1pq1", "age1yubikey1qwe", "AGE-SECRET-KEY-1QQ", "ssh-rsa AAAA", "ssh-ed25519 " + strings.Repeat("A", 68), "", " \t", "-----BEGIN OPENSSH PRIVATE KEY-----", "no-port-forwarding " + fuzzSSH} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := strings.Split(text, "\n")
		recipients, err := ParseRecipients(RecipientsField, list)
		if err != nil {
			var field *FieldError
			require.ErrorAs(t, err, &field)
			require.True(t, strings.HasPrefix(field.Field, RecipientsField), field.Field)
			require.NotContains(t, strings.ToUpper(err.Error()), "AGE-SECRET-KEY-")
			return
		}
		require.Len(t, recipients, len(list))
		var all []age.Recipient
		for _, r := range recipients {
			require.True(t, strings.HasPrefix(r.Fingerprint(), "SHA256:"))
			all = append(all, r.recipient)
		}
		_, err = age.Encrypt(&bytes.Buffer{}, all...)
		require.NoError(t, err)
	})
}

// FuzzParseIdentities: what is read as private keys is one or more of them, or an error that repeats nothing of it.
func FuzzParseIdentities(f *testing.F) {
	id, err := age.GenerateX25519Identity()
	require.NoError(f, err)
	for _, text := range []string{id.String(), "# comment\n\n" + id.String() + "\r\n", "AGE-SECRET-KEY-1SECRETSECRETSECRET", "AGE-SECRET-KEY-PQ-1", "AGE-PLUGIN-YUBIKEY-1QQ", fuzzRecipient, "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----", "age-encryption.org/v1\n", ""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ids, err := ParseIdentities(bytes.NewReader(data))
		if err == nil {
			require.NotEmpty(t, ids)
			return
		}
		// Words that the message has of its own, such as AGE-SECRET-KEY-1..., are shorter.
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); len(line) > 40 {
				require.NotContains(t, err.Error(), line)
			}
		}
	})
}

// FuzzParseTrustedKeys: what is accepted is a key that signatures can be compared with.
func FuzzParseTrustedKeys(f *testing.F) {
	for _, text := range []string{fuzzSSH, "name " + fuzzSSH, `namespaces="a" ` + fuzzSSH, "ssh-rsa AAAA", "-----BEGIN OPENSSH PRIVATE KEY-----", "#", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := ParseTrustedKeys([]string{text})
		if err != nil {
			var field *FieldError
			require.ErrorAs(t, err, &field)
			require.Equal(t, TrustedKeysField+"[0]", field.Field)
			return
		}
		require.Len(t, keys, 1)
		require.True(t, keys.find(keys[0]))
	})
}
