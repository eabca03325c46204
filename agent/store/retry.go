package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// RetryPolicy says how a failed call to a store is tried again: after a random part of a delay that doubles each time
// ("full jitter"), until no try made progress for a while. Zero fields have defaults.
type RetryPolicy struct {
	// Base is the most that is waited after the first failure; 500 ms if 0. It doubles with each failure in a row.
	Base time.Duration
	// Max is the most that is waited at once; 30 s if 0. A store that asks for more by Retry-After gets it.
	Max time.Duration
	// GiveUp is how long failures may go on without progress; 5 minutes if 0. Total time has no limit.
	GiveUp time.Duration
	// MinTries is how many tries in a row must have failed before GiveUp counts, for tries that take long; 3 if 0.
	MinTries int
	// Progress, if set, gives a number that grows whenever work is done for good, such as bytes the store has
	// acknowledged, also by other calls of the same upload. When it has grown, GiveUp and Base start anew.
	// Bytes that are sent again on each try are no progress.
	Progress func() int64
	// OnRetry, if set, is told of every failure that is followed by another try.
	OnRetry func(err error, delay time.Duration)
}

func (p RetryPolicy) withDefaults() RetryPolicy {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&p.Base, 500*time.Millisecond)
	def(&p.Max, 30*time.Second)
	def(&p.GiveUp, 5*time.Minute)
	if p.MinTries <= 0 {
		p.MinTries = 3
	}
	return p
}

// Retry calls f until it succeeds, fails for good (see IsPermanent), made no progress for p.GiveUp, or ctx ends. The
// error is always f's last one, with what ended the tries added.
func Retry(ctx context.Context, p RetryPolicy, f func(ctx context.Context) error) error {
	p = p.withDefaults()
	if err := CtxErr(ctx); err != nil {
		return err
	}
	var done int64
	if p.Progress != nil {
		done = p.Progress()
	}
	since, tries := time.Now(), 0
	for {
		err := f(ctx)
		if err == nil || IsPermanent(err) {
			return err
		}
		if ctxErr := CtxErr(ctx); ctxErr != nil {
			return interrupted(ctxErr, err)
		}
		if p.Progress != nil {
			if now := p.Progress(); now > done {
				done, since, tries = now, time.Now(), 0
			}
		}
		tries++
		delay, asked := p.delay(tries, err)
		if failing := time.Since(since); tries >= p.MinTries && failing+delay > p.GiveUp {
			if asked {
				return fmt.Errorf("%w (gave up after %d tries without progress in %v; the server asks to wait another %v)", err, tries, failing.Round(time.Second), delay)
			}
			return fmt.Errorf("%w (gave up after %d tries without progress in %v)", err, tries, failing.Round(time.Second))
		}
		if p.OnRetry != nil {
			p.OnRetry(err, delay)
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return interrupted(CtxErr(ctx), err)
		}
	}
}

// interrupted keeps what went wrong before ctx ended: that is the cause, the end of ctx is only its consequence.
func interrupted(ctxErr, last error) error {
	if errors.Is(last, ctxErr) {
		return last
	}
	return fmt.Errorf("%w: last failure: %w", ctxErr, last)
}

// delay is how long to wait after the n-th failure in a row, and whether the store asked for it.
func (p RetryPolicy) delay(n int, err error) (d time.Duration, asked bool) {
	limit := p.Base
	for i := 1; i < n && limit < p.Max; i++ {
		limit *= 2
	}
	d = rand.N(min(limit, p.Max) + 1) //nolint:gosec // it spreads retries and hides nothing
	var ra interface{ RetryAfter() time.Duration }
	if errors.As(err, &ra) && ra.RetryAfter() > d {
		return ra.RetryAfter(), true
	}
	return d, false
}

// IsPermanent says that trying again does not help: the store has decided, the certificate does not verify, or
// Permanent says so.
func IsPermanent(err error) bool {
	for _, target := range []error{ErrNotExist, ErrExists, ErrAccessDenied, ErrMismatch, ErrProtected, ErrConfig, errPermanent} {
		if errors.Is(err, target) {
			return true
		}
	}
	var cert *tls.CertificateVerificationError
	return errors.As(err, &cert)
}

var errPermanent = errors.New("permanent")

type permanent struct{ error }

func (p permanent) Unwrap() error      { return p.error }
func (permanent) Is(target error) bool { return target == errPermanent }

// Permanent marks err as one that Retry does not try again, such as a failure to read the spool file.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

type retryAfter struct {
	error
	after time.Duration
}

func (r retryAfter) Unwrap() error             { return r.error }
func (r retryAfter) RetryAfter() time.Duration { return r.after }

// WithRetryAfter adds to err how long the store asks to wait, which h's Retry-After says in seconds or as a date
// (RFC 9110, section 10.2.3). Without a valid one it is err itself.
func WithRetryAfter(err error, h http.Header) error {
	v := h.Get("Retry-After")
	if err == nil || v == "" {
		return err
	}
	if sec, convErr := strconv.ParseInt(v, 10, 32); convErr == nil && sec >= 0 {
		return retryAfter{err, time.Duration(sec) * time.Second}
	}
	if at, parseErr := http.ParseTime(v); parseErr == nil {
		return retryAfter{err, max(time.Until(at), 0)}
	}
	return err
}
