package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
)

// trustFlags say whose signatures count when snapshots are read.
type trustFlags struct {
	verifyKeys    []string
	allowUnsigned bool
}

func (f *trustFlags) registerTrust(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringSliceVar(&f.verifyKeys, "verify-key", nil, "take only snapshots signed by an SSH public key in this file (repeatable; default: the policy's trusted keys)")
	fl.BoolVar(&f.allowUnsigned, "allow-unsigned", false, "also take snapshots that no trusted key signed, although the policy trusts certain keys")
}

// trusted gives the keys of the flags, or else those of the policy, which is nil where there is none. It is nil where
// signatures are not asked for.
func (f *trustFlags) trusted(p *v1.EtcdSnapshotPolicy) (archive.TrustedKeys, error) {
	if f.allowUnsigned {
		if len(f.verifyKeys) > 0 {
			return nil, usageErrorf("--verify-key and --allow-unsigned exclude each other")
		}
		return nil, nil
	}
	var keys archive.TrustedKeys
	for _, path := range f.verifyKeys {
		more, err := archive.LoadTrustedKeys(path)
		if err != nil {
			return nil, usageErrorf("--verify-key: %w", err)
		}
		keys = append(keys, more...)
	}
	if keys != nil || p == nil {
		return keys, nil
	}
	return archive.PolicyTrustedKeys(p)
}

// args are the flags as they were given.
func (f *trustFlags) args() (args []string) {
	for _, path := range f.verifyKeys {
		args = append(args, "--verify-key", path)
	}
	if f.allowUnsigned {
		args = append(args, "--allow-unsigned")
	}
	return args
}

// signatureCell tells in a table what is known of the signatures of a snapshot's copies.
func signatureCell(copies []listedCopy) string {
	var here, signed int
	for _, c := range copies {
		switch {
		case c.Node != "":
			continue // it cannot be seen from here
		case c.Untrusted != "":
			return "NO"
		case c.Signed:
			signed++
		}
		here++
	}
	switch {
	case here == 0 || signed == 0:
		return "-"
	case signed < here:
		return fmt.Sprintf("%d of %d", signed, here)
	case copies[0].SignedBy == "":
		return "unchecked"
	}
	return "yes"
}
