package emulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// uploadUnit is what Cloud Storage keeps of a request that broke: a multiple of it.
const uploadUnit = 256 << 10

// GCSUploads stands in front of a GCS and does what that does not of resumable uploads, as documented
// (https://cloud.google.com/storage/docs/performing-resumable-uploads): it keeps what arrived of a request that broke,
// tells how much that is, knows what has become of an upload that is complete, and takes cancellations. Complete
// content goes to the GCS, which decides on preconditions and checksums.
type GCSUploads struct {
	// URL of the endpoint to give to the client.
	URL string

	target *url.URL
	client *http.Client
	proxy  *httputil.ReverseProxy
	server *http.Server
	done   chan struct{}

	mu       sync.Mutex
	next     int
	sessions map[string]*uploadSession
	received int64
}

type uploadSession struct {
	mu       sync.Mutex
	path     string
	query    string
	metadata []byte
	content  []byte
	// sender counts requests with content: only the newest one may add to it.
	sender int
	// answer is what the GCS said to the whole.
	answer *http.Response
	body   []byte
}

// StartGCSUploads starts one for a test, which it ends with.
func StartGCSUploads(tb testing.TB, g *GCS) *GCSUploads {
	tb.Helper()
	target, err := url.Parse(g.Endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	u := &GCSUploads{
		URL: "http://" + l.Addr().String(), target: target, done: make(chan struct{}), sessions: map[string]*uploadSession{},
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		proxy: &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
			Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		},
	}
	u.server = &http.Server{Handler: u}
	go func() {
		defer close(u.done)
		_ = u.server.Serve(l) // ends with Close
	}()
	tb.Cleanup(func() {
		u.server.Close()
		<-u.done
	})
	return u
}

// Open is how many uploads there are that are neither complete nor cancelled.
func (u *GCSUploads) Open() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.sessions {
		s.mu.Lock()
		if s.answer == nil {
			n++
		}
		s.mu.Unlock()
	}
	return n
}

// Received is how many bytes of content have arrived, those that were dropped included.
func (u *GCSUploads) Received() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.received
}

// Forget loses all uploads, as the service may at any time.
func (u *GCSUploads) Forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.sessions)
}

// ServeHTTP takes requests about uploads and hands on all others.
func (u *GCSUploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("upload_id")
	switch {
	case id == "" && r.Method == http.MethodPost && r.URL.Query().Get("uploadType") == "resumable":
		u.begin(w, r)
	case id == "":
		u.proxy.ServeHTTP(w, r)
	default:
		u.mu.Lock()
		s := u.sessions[id]
		if r.Method == http.MethodDelete {
			delete(u.sessions, id)
		}
		u.mu.Unlock()
		switch {
		case s == nil:
			http.Error(w, "Not Found", http.StatusNotFound)
		case r.Method == http.MethodDelete:
			w.WriteHeader(499)
		default:
			u.put(w, r, s)
		}
	}
}

func (u *GCSUploads) begin(w http.ResponseWriter, r *http.Request) {
	s := &uploadSession{path: r.URL.EscapedPath(), query: r.URL.RawQuery}
	// The service refuses a bucket that is not there at once.
	bucket := strings.TrimSuffix(strings.TrimPrefix(s.path, "/upload"), "/o")
	resp, err := u.client.Get(u.target.JoinPath(bucket).String())
	if err != nil {
		reset(w)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
		return
	}
	if s.metadata, err = io.ReadAll(r.Body); err != nil {
		reset(w)
		return
	}
	u.mu.Lock()
	u.next++
	id := fmt.Sprintf("upload-%d", u.next)
	u.sessions[id] = s
	u.mu.Unlock()
	w.Header().Set("Location", fmt.Sprintf("https://%s%s?uploadType=resumable&upload_id=%s", r.Host, s.path, id))
}

// put takes content, or a question for how much there is.
func (u *GCSUploads) put(w http.ResponseWriter, r *http.Request, s *uploadSession) {
	first, total, err := parseUploadRange(r.Header.Get("Content-Range"))
	s.mu.Lock()
	have, complete := int64(len(s.content)), s.answer != nil
	s.mu.Unlock()
	switch {
	case err != nil:
		http.Error(w, "Failed to parse Content-Range header.", http.StatusBadRequest)
		return
	case !complete && first > have:
		http.Error(w, fmt.Sprintf("Invalid request. Only %d bytes were received before byte %d.", have, first), http.StatusServiceUnavailable)
		return
	}
	if !complete && first >= 0 && !u.receive(w, r, s, first) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer == nil && int64(len(s.content)) == total {
		if err := u.complete(r, s); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	if s.answer == nil {
		s.cut()
		if len(s.content) > 0 {
			w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", len(s.content)-1))
		}
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	w.Header().Set("Content-Type", s.answer.Header.Get("Content-Type"))
	w.WriteHeader(s.answer.StatusCode)
	_, _ = w.Write(s.body)
}

// cut drops what is not kept, and ends the request that is sending content, if there is one.
func (s *uploadSession) cut() {
	s.sender++
	s.content = s.content[:len(s.content)/uploadUnit*uploadUnit]
}

// receive takes content from the byte first on. It gives false when the client is gone, or has been back meanwhile.
func (u *GCSUploads) receive(w http.ResponseWriter, r *http.Request, s *uploadSession, first int64) bool {
	s.mu.Lock()
	s.cut()
	sender, skip := s.sender, int64(len(s.content))-first
	s.mu.Unlock()
	_, err := io.CopyN(io.Discard, r.Body, skip)
	buf := make([]byte, 64<<10)
	for err == nil {
		var n int
		n, err = r.Body.Read(buf)
		s.mu.Lock()
		if s.sender != sender {
			err = io.ErrClosedPipe
		} else {
			s.content = append(s.content, buf[:n]...)
		}
		s.mu.Unlock()
		u.mu.Lock()
		u.received += int64(n)
		u.mu.Unlock()
	}
	if !errors.Is(err, io.EOF) {
		reset(w)
		return false
	}
	return true
}

// complete gives the whole to the GCS.
func (u *GCSUploads) complete(r *http.Request, s *uploadSession) error {
	ctx := context.WithoutCancel(r.Context()) // the content is here, whoever has left
	to := u.target.String() + s.path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to+"?"+s.query, bytes.NewReader(s.metadata))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := u.client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if req, err = http.NewRequestWithContext(ctx, http.MethodPut, resp.Header.Get("Location"), bytes.NewReader(s.content)); err != nil {
		return err
	}
	if resp, err = u.client.Do(req); err != nil {
		return err
	}
	defer resp.Body.Close()
	if s.body, err = io.ReadAll(resp.Body); err != nil {
		return err
	}
	s.answer, s.content = resp, nil
	return nil
}

// parseUploadRange reads "bytes FIRST-LAST/TOTAL", or "bytes */TOTAL", whose first is -1.
func parseUploadRange(s string) (first, total int64, err error) {
	span, size, ok := strings.Cut(strings.TrimPrefix(s, "bytes "), "/")
	if !ok {
		return 0, 0, strconv.ErrSyntax
	}
	if total, err = strconv.ParseInt(size, 10, 64); err != nil || span == "*" {
		return -1, total, err
	}
	from, _, _ := strings.Cut(span, "-")
	first, err = strconv.ParseInt(from, 10, 64)
	return first, total, err
}
