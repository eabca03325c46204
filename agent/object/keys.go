package object

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"
	k8saes "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
	"sigs.k8s.io/yaml"
)

// Keys decrypts what the API server encrypted at rest. The zero value has no keys.
type Keys struct {
	source string
	// by "provider:name": several resources may have keys of the same name.
	by map[string][]value.Transformer
}

// EncryptedError says that an object is encrypted at rest and cannot be decrypted here.
type EncryptedError struct {
	// Provider is aescbc, aesgcm, secretbox, kms; Key is the key's name.
	Provider, Key string
	Err           error
}

func (e *EncryptedError) Error() string {
	return fmt.Sprintf("it is encrypted at rest with %s (key %s): %v", e.Provider, e.Key, e.Err)
}

func (e *EncryptedError) Unwrap() error { return e.Err }

// encryptionConfiguration is what is needed of apiserver.config.k8s.io/v1 EncryptionConfiguration: the keys. The API server
// has checked the rest.
type encryptionConfiguration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Resources  []struct {
		Providers []map[string]struct {
			Keys []struct {
				Name   string `json:"name"`
				Secret string `json:"secret"`
			} `json:"keys"`
		} `json:"providers"`
	} `json:"resources"`
}

// LoadKeys reads the keys out of the file that the API server's --encryption-provider-config names. An error never quotes
// what is in it.
func LoadKeys(path string) (*Keys, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read encryption configuration: %w", err)
	}
	var c encryptionConfiguration
	if err := yaml.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("read encryption configuration %s: it is no YAML of a kind EncryptionConfiguration", path)
	}
	if c.Kind != "EncryptionConfiguration" || !strings.HasPrefix(c.APIVersion, "apiserver.config.k8s.io/") {
		return nil, fmt.Errorf("read encryption configuration %s: it is no EncryptionConfiguration of apiserver.config.k8s.io", path)
	}
	k := &Keys{source: path, by: map[string][]value.Transformer{}}
	for i, r := range c.Resources {
		for j, providers := range r.Providers {
			for provider, p := range providers {
				for l, key := range p.Keys {
					t, err := transformer(provider, key.Secret)
					if err != nil {
						return nil, fmt.Errorf("read encryption configuration %s: resources[%d].providers[%d].%s.keys[%d]: %w", path, i, j, provider, l, err)
					}
					at := provider + ":" + key.Name
					k.by[at] = append(k.by[at], t)
				}
			}
		}
	}
	return k, nil
}

func transformer(provider, secret string) (value.Transformer, error) {
	key, err := base64.StdEncoding.DecodeString(secret)
	if err != nil {
		return nil, errors.New("secret is not base64")
	}
	switch provider {
	case "aescbc", "aesgcm":
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("secret has %d bytes: 16, 24 or 32 are a key of AES", len(key))
		}
		if provider == "aescbc" {
			return padded{k8saes.NewCBCTransformer(block)}, nil
		}
		return k8saes.NewGCMTransformer(block)
	case "secretbox":
		if len(key) != 32 {
			return nil, fmt.Errorf("secret has %d bytes: 32 are a key of secretbox", len(key))
		}
		return secretbox.NewSecretboxTransformer([32]byte(key)), nil
	}
	return nil, fmt.Errorf("the provider %s has no keys that are known here", provider)
}

// padded refuses what is too short for CBC, whose last block always has padding: Kubernetes' own code takes a value of an
// initialisation vector alone for granted not to be, and panics.
type padded struct{ value.Transformer }

func (p padded) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	if len(data) <= aes.BlockSize {
		return nil, false, errors.New("it ends before the first block")
	}
	return p.Transformer.TransformFromStorage(ctx, data, at)
}

// Open gives the value in clear: as it is where it is not encrypted. The error is a *EncryptedError. key is the key in etcd,
// which is a part of what the encryption authenticates.
func (k *Keys) Open(key, v []byte) ([]byte, error) {
	if !bytes.HasPrefix(v, encryptedPrefix) {
		return v, nil
	}
	// k8s:enc:<provider>:<version>:<name of the key>:<what is encrypted>
	parts := bytes.SplitN(v[len(encryptedPrefix):], []byte(":"), 4)
	if len(parts) < 4 || !isName(parts[0]) || len(parts[2]) > maxName {
		return nil, &EncryptedError{"?", "?", errors.New("it does not say with what")}
	}
	failed := &EncryptedError{Provider: string(parts[0]), Key: fmt.Sprintf("%q", parts[2])}
	known := k.by[string(parts[0])+":"+string(parts[2])]
	switch {
	case failed.Provider == "kms":
		failed.Err = errors.New("only the cluster's key management service can decrypt it: restore the snapshot into a cluster that reaches it")
		return nil, failed
	case string(parts[1]) != "v1":
		failed.Err = fmt.Errorf("version %q of it is not known here", parts[1][:min(len(parts[1]), maxName)])
		return nil, failed
	case k.source == "":
		failed.Err = errors.New("the API server's file of --encryption-provider-config has the key: give it with --encryption-config")
		return nil, failed
	case len(known) == 0:
		failed.Err = fmt.Errorf("%s has no such key: it needs the encryption configuration of the time of the snapshot", k.source)
		return nil, failed
	}
	for _, t := range known {
		// aescbc does not tell a wrong key: what comes out must be an object.
		clear, _, err := t.TransformFromStorage(context.Background(), bytes.Clone(parts[3]), value.DefaultContext(key))
		if err == nil && (bytes.HasPrefix(clear, protobufPrefix) || bytes.HasPrefix(clear, []byte("{"))) {
			return clear, nil
		}
	}
	failed.Err = fmt.Errorf("the key of that name in %s does not open it: it needs the encryption configuration of the time of the snapshot", k.source)
	return nil, failed
}
