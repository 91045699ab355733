package store

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// mounted gives a command that runs another one with mounts of its own, which script makes: root has them, and anybody else in a user namespace of their own. Where the
// kernel refuses them the test is skipped. Where anything else is amiss it is skipped, too, unless FLAMBEAU_TEST_REQUIRED asks for all that this machine can do.
func mounted(t *testing.T, script string) []string {
	t.Helper()
	wrap := []string{"unshare", "--mount", "--propagation", "private"}
	if os.Getuid() != 0 {
		wrap = append(wrap, "--user", "--map-root-user")
	}
	wrap = append(wrap, "sh", "-c", script+` && exec "$@"`, "sh")
	cmd := exec.CommandContext(t.Context(), wrap[0], append(wrap[1:], "true")...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return wrap
	}
	said := strings.TrimSpace(string(out))
	switch why := refusal(err, said); {
	case why != "":
		t.Skipf("the kernel lets no process of this user have mounts of its own: %s (%s; %s)", why, said, limits())
	default:
		e2e.Lacks(t, "a process with mounts of its own cannot be started, and it is not the kernel that refuses it: "+err.Error()+": "+said+
			"; unshare and mount are of the package util-linux")
	}
	return nil
}

// refusal tells the kernel's answer if unshare or mount failed by one that says that this user, or nobody, may do so: EPERM and EACCES (no privilege, or a policy of seccomp,
// AppArmor or SELinux), ENOSPC (the sysctl user.max_user_namespaces), ENOSYS and EINVAL (a kernel without namespaces). "" for every other failure, such as a
// program that is not there or a wrong argument.
func refusal(err error, said string) string {
	exit := (*exec.ExitError)(nil)
	const notFound, notExecutable = 127, 126 // of sh and unshare
	if !errors.As(err, &exit) || exit.ExitCode() == notFound || exit.ExitCode() == notExecutable {
		return ""
	}
	for line := range strings.SplitSeq(said, "\n") {
		if !strings.HasPrefix(line, "unshare: ") && !strings.HasPrefix(line, "mount: ") {
			continue
		}
		for _, answer := range []string{"Operation not permitted", "ermission denied", "No space left on device", "Function not implemented"} {
			if strings.Contains(line, answer) {
				return answer
			}
		}
		if strings.HasPrefix(line, "unshare: unshare failed: Invalid argument") {
			return "Invalid argument"
		}
	}
	return ""
}

// limits are the settings of the kernel that may be the cause.
func limits() string {
	said := []string{fmt.Sprintf("user %d", os.Getuid())}
	for _, name := range []string{"kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns", "user/max_user_namespaces", "user/max_mnt_namespaces"} {
		if text, err := os.ReadFile("/proc/sys/" + name); err == nil {
			said = append(said, strings.ReplaceAll(name, "/", ".")+"="+strings.TrimSpace(string(text)))
		}
	}
	return strings.Join(said, ", ")
}

// TestRefusal: only what the kernel says is a reason to leave a test out.
func TestRefusal(t *testing.T) {
	t.Parallel()
	exit := func(code string) error { return exec.CommandContext(t.Context(), "sh", "-c", "exit "+code).Run() }
	for _, tt := range []struct {
		err  error
		said string
		want string
	}{
		{exit("1"), "unshare: unshare failed: Operation not permitted", "Operation not permitted"},
		{exit("1"), "unshare: unshare failed: No space left on device", "No space left on device"},
		{exit("1"), "unshare: write failed /proc/self/uid_map: Operation not permitted", "Operation not permitted"},
		{exit("1"), "unshare: unshare failed: Invalid argument", "Invalid argument"},
		{exit("32"), "mount: /x: permission denied.\n       dmesg(1) may have more information after failed mount system call.", "ermission denied"},
		{exit("1"), "mount: /x: must be superuser to use mount.", ""},
		{exit("32"), "mount: /x: mount point does not exist.", ""},
		{exit("1"), "unshare: unrecognized option '--nope'", ""},
		{exit("127"), "sh: 1: mount: Permission denied", ""},
		{exec.CommandContext(t.Context(), "/nonexistent/unshare").Run(), "", ""},
	} {
		if got := refusal(tt.err, tt.said); got != tt.want {
			t.Errorf("%v, %q: %q, want %q", tt.err, tt.said, got, tt.want)
		}
	}
}
