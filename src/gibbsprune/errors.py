"""The one exception for mistakes a user can mend."""


class UserError(ValueError):
    """Bad input, told in one plain sentence that names the bad value and what is allowed.

    The command line prints the sentence and exits with a non-zero status, without a traceback.
    """
