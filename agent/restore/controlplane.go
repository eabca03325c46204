package restore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"etcdsnapshot.dev/agent/member"
)

const (
	pollTime  = 250 * time.Millisecond
	probeTime = 3 * time.Second
)

// moveManifests renames the manifests that are in from to to. Those that are not there have been moved before.
func moveManifests(from, to string, manifests []string, before func(string)) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("move manifests: %w", err)
	}
	for _, name := range manifests {
		src, dst := filepath.Join(from, name), filepath.Join(to, name)
		here, err := exists(src)
		if err != nil {
			return fmt.Errorf("move manifests: %w", err)
		}
		if !here {
			continue
		}
		if there, err := exists(dst); err != nil || there {
			return errors.Join(err, fmt.Errorf("move manifests: %s and %s are both there: somebody wrote one of them again; keep the one that is right", src, dst))
		}
		before("rename " + src + " to " + dst)
		if err := renameDurably(src, dst); err != nil {
			return fmt.Errorf("move manifests: %w", err)
		}
	}
	return nil
}

// backwards is for stopping: the scheduler first, etcd last.
func backwards(list []string) []string {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// waitGone waits until nothing listens any more and nobody holds the database.
func (k *Kubeadm) waitGone(ctx context.Context, j *journal) error {
	k.say("Waiting until it is gone: %s, and the lock of the database.", addresses(j.Listeners))
	ctx, cancel := context.WithTimeout(ctx, k.StopTimeout)
	defer cancel()
	for {
		left := stillThere(j)
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return fmt.Errorf("%s after %s, although its manifest was moved away from %s: does the kubelet run (systemctl status kubelet), and is that its folder (staticPodPath in /var/lib/kubelet/config.yaml)? With the kubelet down, stop the containers by hand: crictl ps, crictl stop ID. If it only takes longer, raise --stop-timeout", strings.Join(left, ", and "), k.StopTimeout, j.ManifestsDir)
		case <-time.After(pollTime):
		}
	}
}

// stillThere says what of the control plane is still there.
func stillThere(j *journal) (left []string) {
	for _, l := range j.Listeners {
		if !isLocal(l.Address) {
			continue
		}
		conn, err := net.DialTimeout("tcp", l.Address, probeTime)
		if err == nil {
			conn.Close()
			left = append(left, fmt.Sprintf("%s still answers at %s", l.What, l.Address))
			continue
		}
		// Who does not answer may be busy; who refuses is gone.
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			left = append(left, fmt.Sprintf("%s at %s may still be there (%v)", l.What, l.Address, err))
		}
	}
	db := member.Database(j.Config.DataDir)
	f, err := os.Open(db)
	if err != nil {
		return left // no database, or none that can be opened: nobody is seen to hold it
	}
	defer f.Close()
	// bbolt holds an exclusive flock as long as it is open for writing; this one ends with f.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		left = append(left, fmt.Sprintf("etcd still has %s open", db))
	}
	return left
}

// isLocal tells whether an address can be one of this machine's: manifests may name one that it has lost, or that another
// machine has now.
func isLocal(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true
	}
	host, _, _ = strings.Cut(host, "%") // a zone
	ip := net.ParseIP(host)
	if ip == nil || ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// waitReady waits until the API server says that it is ready, or where there is none here, until etcd answers.
func (k *Kubeadm) waitReady(ctx context.Context, j *journal) error {
	ctx, cancel := context.WithTimeout(ctx, k.ReadyTimeout)
	defer cancel()
	what, probe := "the API server at "+j.ReadyURL, func() error { return probeReady(ctx, j.ReadyURL) }
	if j.ReadyURL == "" {
		what, probe = "etcd at "+addresses(j.Listeners), func() error { return dialAny(ctx, j.Listeners) }
	}
	k.say("Waiting until %s answers.", what)
	var refused time.Time // since when
	for {
		err := probe()
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, errRefused):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) > k.ReadyTimeout/10:
			k.Log.Warn("the API server answers, but tells nobody without credentials whether it is ready", "url", j.ReadyURL, "error", err)
			return nil
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return fmt.Errorf("the data is restored and the manifests are back, but %s is not ready after %s: %w. Look at the containers' logs: crictl ps -a, crictl logs ID; journalctl -u kubelet", what, k.ReadyTimeout, err)
		case <-time.After(pollTime):
		}
	}
}

// errRefused is what an API server says that wants credentials for it (--anonymous-auth=false), and also one that is starting
// and has not read its roles yet: who is refused again and again has met the first kind.
var errRefused = errors.New("it refuses to tell")

// probeReady asks as the kubelet's own probes do: without credentials, and without checking the certificate, since
// nothing is sent that anybody could misuse. Errors: errRefused.
func probeReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: %s", errRefused, resp.Status)
	}
	return fmt.Errorf("it says %s: %s", resp.Status, strings.Join(strings.Fields(string(body)), " "))
}

func dialAny(ctx context.Context, ls []listener) error {
	dialer := net.Dialer{Timeout: probeTime}
	var errs []error
	for _, l := range ls {
		if l.What != "etcd" {
			continue
		}
		conn, err := dialer.DialContext(ctx, "tcp", l.Address)
		if err == nil {
			return conn.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func removeAll(path string) error {
	if path == "" {
		return nil
	}
	return os.RemoveAll(path)
}

// removeEmpty removes a folder unless there is something in it.
func removeEmpty(dir string) error {
	err := os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}

// shellQuote makes one word of s for a shell.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
