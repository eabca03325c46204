package store_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/store"
)

var errReset = errors.New("connection reset by peer")

func TestRetrySucceedsAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limits = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}
		var told []time.Duration
		tries := 0
		last := time.Now()
		err := store.Retry(t.Context(), store.RetryPolicy{OnRetry: func(err error, d time.Duration) {
			require.ErrorIs(t, err, errReset)
			told = append(told, d)
		}}, func(context.Context) error {
			if tries > 0 {
				require.Equal(t, told[tries-1], time.Since(last), "waits as long as it says")
				require.LessOrEqual(t, told[tries-1], limits[tries-1])
			}
			last = time.Now()
			if tries++; tries <= len(limits) {
				return errReset
			}
			return nil
		})
		require.NoError(t, err)
		require.Len(t, told, len(limits))
	})
}

// Jitter spreads the agents of many clusters that fail at the same moment.
func TestRetryJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delays := map[time.Duration]bool{}
		for range 20 {
			tries := 0
			require.NoError(t, store.Retry(t.Context(), store.RetryPolicy{OnRetry: func(_ error, d time.Duration) { delays[d] = true }}, func(context.Context) error {
				if tries++; tries == 1 {
					return errReset
				}
				return nil
			}))
		}
		require.Greater(t, len(delays), 10)
	})
}

func TestRetryGivesUpByLackOfProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := store.Retry(t.Context(), store.RetryPolicy{GiveUp: 2 * time.Minute, Max: 10 * time.Second}, func(context.Context) error { return errReset })
		require.ErrorIs(t, err, errReset)
		require.ErrorContains(t, err, "without progress")
		require.LessOrEqual(t, time.Since(start), 2*time.Minute)
		require.Greater(t, time.Since(start), 105*time.Second)
	})
}

func TestRetryGoesOnWhileThereIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var done int64
		// Each try works for a minute, and until an hour is over part of that is kept.
		err := store.Retry(t.Context(), store.RetryPolicy{GiveUp: 2 * time.Minute, Progress: func() int64 { return done }}, func(context.Context) error {
			time.Sleep(time.Minute)
			if time.Since(start) < time.Hour {
				done++
			}
			return errReset
		})
		require.ErrorIs(t, err, errReset)
		require.Greater(t, time.Since(start), time.Hour)
		require.Less(t, time.Since(start), time.Hour+5*time.Minute)
	})
}

func TestRetryTriesSlowCallsSeveralTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := store.Retry(t.Context(), store.RetryPolicy{GiveUp: time.Minute}, func(context.Context) error {
			tries++
			time.Sleep(5 * time.Minute)
			return errReset
		})
		require.ErrorIs(t, err, errReset)
		require.Equal(t, 3, tries)
	})
}

func TestRetryAfter(t *testing.T) {
	after := func(v string) error { return store.WithRetryAfter(errReset, http.Header{"Retry-After": {v}}) }
	wait := func(t *testing.T, p store.RetryPolicy, first error) (time.Duration, error) {
		start := time.Now()
		tries := 0
		err := store.Retry(t.Context(), p, func(context.Context) error {
			if tries++; tries == 1 {
				return fmt.Errorf("put part 3: %w", first)
			}
			return nil
		})
		return time.Since(start), err
	}
	for name, f := range map[string]func() error{
		"seconds": func() error { return after("120") },
		"date":    func() error { return after(time.Now().Add(120 * time.Second).UTC().Format(http.TimeFormat)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, err := wait(t, store.RetryPolicy{}, f())
				require.NoError(t, err)
				require.Equal(t, 120*time.Second, d)
			})
		})
	}
	for _, v := range []string{"", "soon", "-5", "0"} {
		t.Run("not "+v, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, err := wait(t, store.RetryPolicy{}, after(v))
				require.NoError(t, err)
				require.LessOrEqual(t, d, 500*time.Millisecond)
			})
		})
	}
	t.Run("longer than we try", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			err := store.Retry(t.Context(), store.RetryPolicy{MinTries: 1}, func(context.Context) error { return after("3600") })
			require.ErrorIs(t, err, errReset)
			require.ErrorContains(t, err, "asks to wait another 1h0m0s")
		})
	})
	require.NoError(t, store.WithRetryAfter(nil, http.Header{"Retry-After": {"1"}}))
}

func TestRetryStopsAtPermanentErrors(t *testing.T) {
	for _, permanent := range []error{
		store.ErrNotExist, store.ErrExists, store.ErrAccessDenied, store.ErrConfig, store.ErrMismatch, store.ErrProtected,
		store.Permanent(errReset), &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
	} {
		tries := 0
		err := store.Retry(t.Context(), store.RetryPolicy{}, func(context.Context) error {
			tries++
			return fmt.Errorf("put: %w", permanent)
		})
		require.ErrorIs(t, err, permanent)
		require.EqualError(t, err, "put: "+permanent.Error(), "nothing added")
		require.Equal(t, 1, tries)
	}
	require.False(t, store.IsPermanent(errReset))
	require.False(t, store.IsPermanent(nil))
	require.NoError(t, store.Permanent(nil))
	require.ErrorIs(t, store.Permanent(errReset), errReset)
}

func TestRetryEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := store.Retry(ctx, store.RetryPolicy{}, func(context.Context) error { return errReset })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errReset, "what went wrong before is not lost")

		called := false
		require.ErrorIs(t, store.Retry(ctx, store.RetryPolicy{}, func(context.Context) error { called = true; return nil }), context.DeadlineExceeded)
		require.False(t, called)

		ctx, cancel = context.WithCancel(t.Context())
		err = store.Retry(ctx, store.RetryPolicy{}, func(context.Context) error { cancel(); return errReset })
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errReset)
	})
}
