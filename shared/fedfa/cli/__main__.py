"""python -m fedfa.cli"""

from fedfa.cli import main

main()
