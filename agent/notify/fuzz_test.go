package notify

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

// FuzzFormat: errors quote what servers answer. Whatever stands in them, each form is a message of a size that is taken,
// and in Slack's nothing of it calls anybody or ends the block that it stands in.
func FuzzFormat(f *testing.F) {
	f.Add("prod-eu", "no member <!channel> & nothing ```works```", "disk full", v1.EventFailed)
	f.Add("\x00\xff", strings.Repeat("é", 4000), "`", v1.EventPartial)
	f.Add("<a|b>", "``"+"`\n``", strings.Repeat("`", 5000), "")
	f.Fuzz(func(t *testing.T, cluster, message, diagnosis, event string) {
		n := notice(event)
		n.ClusterName, n.Message, n.Diagnosis = cluster, message, []string{diagnosis}
		n.Summary = Summary(n)
		require.LessOrEqual(t, len(reasons(n)), maxMessage)
		for _, form := range []string{v1.WebhookJSON, v1.WebhookSlack, v1.WebhookTeams} {
			body, err := format(form, n)
			require.NoError(t, err)
			require.True(t, utf8.Valid(body))
			require.True(t, json.Valid(body))
		}
		var slackBody struct{ Text string }
		body, err := format(v1.WebhookSlack, n)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(body, &slackBody))
		require.NotContains(t, slackBody.Text, "<")
		require.NotContains(t, slackBody.Text, ">")
		if why := reasons(n); why != "" {
			require.True(t, strings.HasSuffix(slackBody.Text, "```"))
			require.LessOrEqual(t, strings.Count(slackBody.Text, "```"), 2+strings.Count(n.Summary+cluster, "```"))
		}
		_ = text(n)
	})
}

// FuzzSecret: whatever is in the Secret, it is a URL and a key to sign with, or an error that shows neither.
func FuzzSecret(f *testing.F) {
	f.Add("https://hooks.example/"+token, signingKey)
	f.Add("http://a:b@[::1]:80/?x=%zz", "whsec_")
	f.Add("https:///"+token, "whsec_"+strings.Repeat("A", 32))
	f.Add("\x7f", "\x00")
	f.Fuzz(func(t *testing.T, url, key string) {
		spec := webhook(t, url, v1.WebhookJSON)
		spec.Webhook.Signed, spec.Webhook.CredentialsDir = true, secret(t, url, key)
		target := open(spec, Options{})
		if target.err == nil {
			require.NotEmpty(t, target.url.Hostname())
			sign(http.Header{}, target.key, "id", time.Unix(0, 0), []byte("body"))
			return
		}
		said := strings.ReplaceAll(target.err.Error(), spec.Webhook.CredentialsDir, "")
		for _, secret := range []string{strings.TrimSpace(url), strings.TrimSpace(key)} {
			// Shorter ones are in the message's own words.
			if len(secret) > 16 {
				require.NotContains(t, said, secret)
			}
		}
	})
}
