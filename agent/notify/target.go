package notify

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/wire"
	"etcdsnapshot.dev/agent/units"
)

// maxSecretFile bounds what is read of a Secret's file: URLs of workflow services are long, but not that long.
const maxSecretFile = 8 << 10

// target is one notification with what its files hold.
type target struct {
	spec  v1.Notification
	where v1.NotificationTarget
	o     Options
	// err is why it cannot be used.
	err       error
	url       *url.URL
	key       []byte // nil where nothing is signed
	transport *http.Transport
	// started ends when the run's beginning has been told.
	started sync.WaitGroup
}

// message is what is sent to a target.
type message struct {
	method, contentType string
	url                 *url.URL
	body                []byte
	// id is that of the message, not of the try: who gets it twice can tell. Empty where none is sent.
	id string
	// anyAnswer says that an answer is all that is wanted.
	anyAnswer bool
	err       error
}

func open(spec v1.Notification, o Options) *target {
	t := &target{spec: spec, o: o}
	if spec.Ping != nil {
		t.where = spec.Ping.NotificationTarget
	} else {
		t.where = spec.Webhook.NotificationTarget
	}
	t.err = t.read()
	return t
}

func (t *target) read() (err error) {
	text, err := t.file(v1.NotificationFileURL)
	if err != nil {
		return err
	}
	// What the parser says would hold the URL.
	t.url, err = url.Parse(text)
	if err != nil || t.url.Scheme != "https" && t.url.Scheme != "http" || t.url.Hostname() == "" || strings.ContainsAny(text, " \t\r\n") {
		t.url = nil
		return t.wrong(v1.NotificationFileURL, errors.New("it is no URL that begins with https:// or http:// (it is a secret and not shown)"))
	}
	t.url.Fragment, t.url.RawFragment = "", ""
	if w := t.spec.Webhook; w != nil && w.Signed {
		if text, err = t.file(v1.NotificationFileSigningKey); err != nil {
			return err
		}
		if t.key, err = parseKey(text); err != nil {
			return t.wrong(v1.NotificationFileSigningKey, err)
		}
	}
	if t.transport, err = wire.NewTransport(v1.EndpointSpec{CABundleFile: t.where.CABundleFile}, 1); err != nil {
		return err
	}
	return nil
}

// file gives what a file of the Secret holds.
func (t *target) file(name string) (string, error) {
	f, err := os.Open(filepath.Join(t.where.CredentialsDir, name))
	if err != nil {
		return "", t.wrong(name, fmt.Errorf("%w (the Secret, or this key in it, is missing)", errors.Unwrap(err)))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	text := strings.TrimSpace(string(data))
	switch {
	case err != nil:
		return "", t.wrong(name, err)
	case len(data) > maxSecretFile:
		return "", t.wrong(name, fmt.Errorf("it holds more than %d bytes", maxSecretFile))
	case text == "":
		return "", t.wrong(name, errors.New("it is empty"))
	}
	return text, nil
}

func (t *target) wrong(file string, err error) error {
	return fmt.Errorf("%w: credentialsDir: %s: %w", store.ErrConfig, filepath.Join(t.where.CredentialsDir, file), err)
}

func (t *target) kind() string {
	if t.spec.Ping != nil {
		return "ping"
	}
	return "webhook"
}

// start is the message of a switch that a run begins.
func (t *target) start() message {
	return message{method: http.MethodPost, contentType: textPlain, url: t.url.JoinPath("start")}
}

// nothing is a message that only wants an answer.
func (t *target) nothing() message {
	return message{method: http.MethodHead, url: &url.URL{Scheme: t.url.Scheme, Host: t.url.Host, Path: "/"}, anyAnswer: true}
}

// end is the message that the run ended as notice says.
func (t *target) end(notice *v1.Notice) message {
	if t.err != nil {
		return message{}
	}
	m := message{method: http.MethodPost, url: t.url}
	if t.spec.Ping != nil {
		m.contentType, m.body = textPlain, []byte(text(notice))
		switch notice.Event {
		case v1.EventSucceeded, v1.EventRecovered:
		case v1.EventTest:
			m.url = t.url.JoinPath("log") // neither good nor bad
		default:
			m.url = t.url.JoinPath("fail")
		}
		return m
	}
	m.contentType = applicationJSON
	m.body, m.err = format(t.spec.Webhook.Format, notice)
	if t.spec.Webhook.Format == v1.WebhookJSON {
		m.id = "msg_" + rand.Text()
	}
	return m
}

// send sends a message, again and again until it is taken, refused for good, or the budget is used up.
func (t *target) send(ctx context.Context, budget time.Duration, m message) Result {
	r := t.result()
	if r.Err == nil {
		r.Err = m.err
	}
	if r.Err != nil {
		return r
	}
	end := time.Now().Add(budget)
	policy := store.RetryPolicy{Base: t.o.Backoff, Max: tryTime, GiveUp: budget, MinTries: 1}
	err := store.Retry(ctx, policy, func(ctx context.Context) error {
		r.Tries++
		// At least a moment, so that the last try fails on what is wrong and not on us.
		limit := max(min(tryTime, time.Until(end)), 100*time.Millisecond)
		err := t.try(ctx, limit, m)
		if err != nil {
			t.o.Log.Debug("notification was not taken", "notification", t.spec.Name, "host", r.Host, "try", r.Tries, "error", t.scrub(err))
		}
		return err
	})
	if err != nil {
		r.Err = t.scrub(err)
	}
	return r
}

// noAnswer is the cause of a try that took too long.
type noAnswer time.Duration

func (d noAnswer) Error() string {
	return fmt.Sprintf("no answer within %s", time.Duration(d).Round(100*time.Millisecond))
}

func (t *target) try(ctx context.Context, limit time.Duration, m message) error {
	within, cancel := context.WithTimeoutCause(ctx, limit, noAnswer(limit))
	defer cancel()
	req, err := http.NewRequestWithContext(within, m.method, m.url.String(), bytes.NewReader(m.body))
	if err != nil {
		return store.Permanent(err)
	}
	req.Header.Set("User-Agent", "etcd-snapshot-agent/"+t.o.Version)
	if m.contentType != "" {
		req.Header.Set("Content-Type", m.contentType)
	}
	if m.id != "" {
		sign(req.Header, t.key, m.id, time.Now(), m.body)
	}
	client := &http.Client{Transport: t.transport, CheckRedirect: staysThere}
	if m.anyAnswer {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	res, err := client.Do(req)
	if err != nil {
		if cause := context.Cause(within); cause != nil && ctx.Err() == nil {
			return cause
		}
		return wire.Explain(err, m.url.Scheme+"://"+m.url.Host, "the file url of the notification's Secret")
	}
	defer res.Body.Close()
	if m.anyAnswer || res.StatusCode/100 == 2 {
		return nil
	}
	return refusal(res)
}

// refusal is the error of an answer that is no success. What the server says is often the only clue (channel_is_archived).
func refusal(res *http.Response) error {
	said, _ := io.ReadAll(io.LimitReader(res.Body, 512)) // that it cannot be read is no worse than that there is nothing
	err := fmt.Errorf("the server answers %d %s", res.StatusCode, http.StatusText(res.StatusCode))
	if text := strings.Join(strings.Fields(strings.ToValidUTF8(string(said), "")), " "); text != "" {
		err = fmt.Errorf("%w: %q", err, units.Shorten(text, 200))
	}
	switch {
	case res.StatusCode >= 500, res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusRequestTimeout:
		return store.WithRetryAfter(err, res.Header)
	}
	return store.Permanent(err)
}

// redirected is a redirect that is not followed.
type redirected struct{ to, why string }

func (e *redirected) Error() string {
	return fmt.Sprintf("the server redirects to %s, which is not followed: %s", e.to, e.why)
}

// staysThere follows redirects that stay at the server that the user named, and keep the body.
func staysThere(req *http.Request, via []*http.Request) error {
	first := via[0]
	e := &redirected{to: req.URL.Scheme + "://" + req.URL.Host}
	switch {
	case req.URL.Scheme != first.URL.Scheme || req.URL.Host != first.URL.Host:
		e.why = "the URL in the Secret names another server; write this one there if it is yours"
	case req.Method != first.Method:
		e.why = "the redirect would drop the message"
	case len(via) > 5:
		e.why = "it is one of too many"
	default:
		return nil
	}
	return store.Permanent(e)
}

// scrub takes the secret parts of the URL out of an error: a server may repeat in its answer what it was asked for.
func (t *target) scrub(err error) error {
	text := err.Error()
	for _, secret := range t.secrets() {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return &scrubbed{text: text, config: errors.Is(err, store.ErrConfig), permanent: store.IsPermanent(err)}
}

// scrubbed keeps of an error what may be known of it.
type scrubbed struct {
	text              string
	config, permanent bool
}

func (e *scrubbed) Error() string { return e.text }
func (e *scrubbed) Is(target error) bool {
	return target == store.ErrConfig && (e.config || e.permanent)
}

// shortestSecret is how long a part of a URL must be to be taken for a secret by itself.
const shortestSecret = 6

// secrets gives the parts of the URL that must not be shown, the longest first.
func (t *target) secrets() (all []string) {
	add := func(s string) {
		if len(s) >= shortestSecret {
			all = append(all, s, url.QueryEscape(s), url.PathEscape(s))
		}
	}
	if password, ok := t.url.User.Password(); ok && password != "" {
		all = append(all, password)
	}
	add(t.url.User.Username())
	add(strings.Trim(t.url.EscapedPath(), "/"))
	for segment := range strings.SplitSeq(t.url.Path, "/") {
		add(segment)
	}
	add(t.url.RawQuery)
	for _, values := range t.url.Query() {
		for _, v := range values {
			add(v)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(all)
}
