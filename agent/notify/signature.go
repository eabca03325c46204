package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Headers of Standard Webhooks 1.0 (https://www.standardwebhooks.com), and the prefix of its symmetric keys.
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"

	keyPrefix = "whsec_"
)

// Bytes that a key may have, as Standard Webhooks asks for.
const (
	minKey = 24
	maxKey = 64
)

// parseKey reads a key in its text form. The error does not show it.
func parseKey(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, keyPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(key) < minKey || len(key) > maxKey {
		return nil, errors.New("it is no signing key: " + keyPrefix + " and 24 to 64 random bytes in base64, as `echo " + keyPrefix + "$(openssl rand -base64 32)` prints (it is a secret and not shown)")
	}
	return key, nil
}

// sign sets the headers that tell one message from another and, with a key, who sent it and when.
func sign(h http.Header, key []byte, id string, now time.Time, body []byte) {
	timestamp := fmt.Sprint(now.Unix())
	h.Set(headerID, id)
	h.Set(headerTimestamp, timestamp)
	if key == nil {
		return
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	h.Set(headerSignature, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
